"""Many sequences over one model: the cache in pages, runs of batches, the scheduler, the engine."""
