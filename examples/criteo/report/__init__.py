"""Results of a training: metrics, records, TensorBoard, dumped rows."""
