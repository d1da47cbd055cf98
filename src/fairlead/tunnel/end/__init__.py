"""One end of a tunnel: numbering, order, acknowledgement, resending, window, options, close and abort."""
