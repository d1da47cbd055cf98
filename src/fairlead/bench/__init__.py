"""`fairlead bench`: how fast is this server on this machine, with every message checked."""
