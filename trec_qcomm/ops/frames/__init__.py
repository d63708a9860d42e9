"""Headers and checksums of frames: the kernels of wire/frame.py."""
