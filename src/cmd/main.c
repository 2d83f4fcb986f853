/* main.c - the program's entry. Everything else is in dispatch.c, which the tests link too. */
#include "cmd/verb.h"

#include <fcntl.h>
#include <unistd.h>

/* The first file that is opened would become a standard descriptor that is closed: it would be read
 * as prompts, or printed into. A folder in its place can be neither read nor written. */
static void hold_closed_descriptors(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/", O_RDONLY | O_DIRECTORY);
}

int main(int argc, char **argv)
{
    hold_closed_descriptors();
    return mx_main(argc, argv, environ);
}
