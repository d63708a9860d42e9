"""All-reduce of dense gradients over coded messages: four algorithms, any codec, any length."""
