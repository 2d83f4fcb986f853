/* plan_mesh.h - maxc plan for a machine of many chips. */
#ifndef MX_CMD_PLAN_MESH_H
#define MX_CMD_PLAN_MESH_H

#include "cmd/verb.h"
#include "exec/saved_programs.h"
#include "models/model.h"
#include "plan/chips.h"

/* What dtype= is multiplied in. */
mx_rate mx_plan_rate_of(const mx_config *c);
/* Whether the keys ask for one: compile_topology, mesh=auto, or a mesh of chips with a name. */
mx_status mx_plan_wants_machine(const mx_config *c, bool *out) MX_MUST_USE;
/* plan.c: keeps the programs of the run where compiled_trainstep_file asks for it. config and model
 * are set here. */
mx_status mx_plan_save(const mx_invocation *inv, const mx_model_spec *m,
                       mx_saved_request *r) MX_MUST_USE;
mx_status mx_plan_machine(const mx_invocation *inv, const mx_model_spec *m) MX_MUST_USE;

#endif
