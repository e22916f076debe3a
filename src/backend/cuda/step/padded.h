/* padded.h - the numbers of rows that a step is padded to. */
#pragma once

#include "backend/cuda/cuda.h"

int padded_rows(int n);    // what a step of n >= 1 rows is computed as: what lies between is padding
int padded_index(int n);   // which of those numbers, in order, from 0
int padded_rows_at(int i); // and back
