/* base_yml.h - configs/base.yml, written from the tables of keys. */
#ifndef MX_CMD_BASE_YML_H
#define MX_CMD_BASE_YML_H

void mx_base_yml_print(void);

#endif
