/* version.h - the program's version: major.minor.patch; the formats it writes follow the minor. */
#ifndef MX_BASE_VERSION_H
#define MX_BASE_VERSION_H

#define MX_VERSION "0.1.0"

#endif
