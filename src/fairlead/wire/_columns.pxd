from libc.stdint cimport uint8_t


cdef class Held:
    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef Py_ssize_t size  # bytes
    cdef Py_ssize_t width  # of one item, where the flags asked for it
    cdef bint held
