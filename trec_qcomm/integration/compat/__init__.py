"""Every public name of TorchRec and FBGEMM that the package uses.

`compat.private` has the attributes whose names begin with an underscore. No other file of the
package imports TorchRec or reads such an attribute (tests/integration/test_compat.py). Written
against torchrec 1.8.0; `make test-versions` tests it with 1.6.1 to 1.9.2.
"""

from importlib.metadata import distributions

try:
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        SplitTableBatchedEmbeddingBagsCodegen,
    )
    from torchrec.distributed import comm as torchrec_comm
    from torchrec.distributed.comm_ops import (
        Request,
        get_gradient_division,
        get_use_sync_collectives,
    )
    from torchrec.distributed.dist_data import (
        PooledEmbeddingsAllToAll,
        PooledEmbeddingsReduceScatter,
        VariableBatchPooledEmbeddingsAllToAll,
    )
    from torchrec.distributed.embedding import (
        EmbeddingCollectionSharder,
        ShardedEmbeddingCollection,
    )
    from torchrec.distributed.embedding_sharding import (
        BaseEmbeddingDist,
        BaseSparseFeaturesDist,
        EmbeddingSharding,
        EmbeddingShardingContext,
        EmbeddingShardingInfo,
    )
    from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
    from torchrec.distributed.embeddingbag import (
        EmbeddingBagCollectionSharder,
        ShardedEmbeddingBagCollection,
    )
    from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
    from torchrec.distributed.fused_embeddingbag import (
        FusedEmbeddingBagCollectionSharder,
        ShardedFusedEmbeddingBagCollection,
    )
    from torchrec.distributed.itep_embeddingbag import (
        ShardedITEPEmbeddingBagCollection,
        ShardedITEPEmbeddingCollection,
    )
    from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
    from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
    from torchrec.distributed.mc_modules import (
        ManagedCollisionCollectionSharder,
        ShardedManagedCollisionCollection,
    )
    from torchrec.distributed.model_parallel import (
        DefaultDataParallelWrapper,
        DistributedModelParallel,
    )
    from torchrec.distributed.planner.shard_estimators import (
        EmbeddingPerfEstimator,
        get_num_poolings,
    )
    from torchrec.distributed.planner.types import (
        CollectiveType,
        GeneralizedCommsBandwidth,
        ParameterConstraints,
        Shard,
        ShardingOption,
        Topology,
    )
    from torchrec.distributed.sharding.cw_sequence_sharding import CwSequenceEmbeddingSharding
    from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
    from torchrec.distributed.sharding.grid_sharding import GridPooledEmbeddingSharding
    from torchrec.distributed.sharding.rw_sequence_sharding import RwSequenceEmbeddingSharding
    from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding
    from torchrec.distributed.sharding.sequence_sharding import SequenceShardingContext
    from torchrec.distributed.sharding.tw_sequence_sharding import TwSequenceEmbeddingSharding
    from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingSharding
    from torchrec.distributed.sharding.twcw_sharding import TwCwPooledEmbeddingSharding
    from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingSharding
    from torchrec.distributed.sharding_plan import (
        column_wise,
        construct_module_sharding_plan,
        data_parallel,
        row_wise,
        table_row_wise,
        table_wise,
    )
    from torchrec.distributed.types import (
        Awaitable,
        ModuleSharder,
        ParameterSharding,
        QuantizedCommCodecs,
        ShardedModule,
        ShardingEnv,
        ShardingPlan,
        ShardingType,
    )
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
except (ImportError, AttributeError, OSError, RuntimeError) as error:
    if isinstance(error, ModuleNotFoundError) and error.name in ("torchrec", "fbgemm_gpu"):
        raise  # it is not installed at all
    _named = sorted(f"{d.name} {d.version}" for d in distributions())
    _installed = ", ".join(n for n in _named if n.startswith(("torch ", "torchrec ", "fbgemm")))
    raise ImportError(
        f"TorchRec or FBGEMM cannot be imported: {error}; installed: {_installed}; torch 2.N needs "
        "torchrec and fbgemm-gpu 1.(N - 5), such as torch 2.13 and 1.8, for the same CUDA or none"
    ) from error
