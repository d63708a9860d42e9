"""All-reduce of dense gradients over coded messages: three algorithms, any codec, any length."""
