/* test_devices.c - see test_devices.h. */
#include "test_devices.h"

const mx_device_traits mx_test_remote = {.name = "remote"};

mx_device_traits mx_test_fusing(void)
{
    mx_device_traits t = mx_cuda_traits;
    t.strided_views = false;
    t.work_bytes = NULL;
    t.gemm_work_bytes = 0;
    return t;
}
