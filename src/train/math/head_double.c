/* head_double.c - the head in double precision, for tests. */
#include "train/math/head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REAL double
#define NAME(x) x##_f64
#include "train/math/head_body.h"
