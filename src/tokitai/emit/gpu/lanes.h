// A GPU thread works on one value at a time: the names shared by numbers and hashes.
#pragma once
#include "threads.h"
#include "integers.h"

#define LANES 1

#define INFINITE float_of(0x7F800000u)
