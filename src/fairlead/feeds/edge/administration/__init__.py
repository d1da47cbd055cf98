"""The stream administration as a program: conversations on `_STREAMS`, and the file it keeps."""
