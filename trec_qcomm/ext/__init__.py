"""Extensions that a training may add: methods of published systems that no preset recommends.

The core imports a module of this package only if a section of a config, a codec's name or a wire id
needs it.
"""
