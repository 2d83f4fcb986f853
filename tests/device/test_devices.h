/* test_devices.h - devices to compile for in tests, whose programs run on the CPU. */
#ifndef MX_TESTS_TEST_DEVICES_H
#define MX_TESTS_TEST_DEVICES_H

#include "device/device.h"

/* A CPU with memory of its own. */
extern const mx_device_traits mx_test_remote;
/* One that wants what CUDA's kernels do, but for strided views, which the CPU's do not take, and
 * their workspace. */
mx_device_traits mx_test_fusing(void);

#endif
