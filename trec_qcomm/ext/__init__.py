"""What a training may add to the core: methods of published systems that no preset recommends.

The core never imports it; a section of a config, a codec's name or a wire id names the module.
"""
