"""Next-item prediction with attention over an EmbeddingCollection (unpooled rows)."""
