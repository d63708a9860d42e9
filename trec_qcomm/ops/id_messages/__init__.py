"""Headers and checksums of messages of ids: the kernels of wire/id_messages.py."""
