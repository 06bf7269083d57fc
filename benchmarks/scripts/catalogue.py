"""The scripts: where each comes from, its arguments on each machine, and what stands for downloads.

Models are small on the CPU, where everything is computed, and of usual size on a pretended GPU.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Script:
    """A public script.

    Attributes:
        name: Its name here.
        repository: Its owner and name on GitHub.
        path: Its path there.
        cpu: Its arguments on the CPU, split at spaces; None: it does not run there.
        gpu: The same on a GPU.
        fits: The same under `stalloc fits`; None: those on a GPU.
        data: The files that are made for it, by the name of data.py.
        changing: True if shapes change from iteration to iteration.
        processes: Their number.
        start: The folder that it starts in; None is its own.
        paths: Folders of the repository that it imports modules from.
        environment: Variables.
        note: What stands for a download, or differs from its documentation.
    """

    name: str
    repository: str
    path: str
    cpu: str | None
    gpu: str | None
    data: str = ""
    changing: bool = False
    processes: int = 1
    start: str | None = None
    paths: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    fits: str | None = None

    @property
    def checkout(self) -> str:
        """The folder of the repository's checkout."""
        return self.repository.split("/")[1]

    @property
    def folder(self) -> str:
        """The folder that the script starts in."""
        return str(PurePosixPath(self.path).parent) if self.start is None else self.start

    def runs_on(self, machine: str) -> bool:
        """True if there are arguments for this machine."""
        return self._text(machine) is not None

    def arguments(self, machine: str) -> list[str]:
        """Its arguments on a machine: cpu, gpu, or fits."""
        return (self._text(machine) or "").split()

    def _text(self, machine: str) -> str | None:
        if machine == "fits" and self.fits is not None:
            return self.fits
        return self.cpu if machine == "cpu" else self.gpu


_EXAMPLES = "pytorch/examples"
_RANDOM_TEXT = "random text"
_RANDOM_MNIST = "random images in MNIST's format"
_RANDOM_MODEL = "random text; a model and a tokenizer that are made on the spot"
_TRAINER = "--output_dir out --report_to none --seed 1 --logging_steps 10 --learning_rate 1e-4"
_TEXT = "--train_file train.txt --validation_file validation.txt"
_CLM = f"--model_name_or_path model {_TEXT} --do_train --do_eval --eval_strategy steps"
_RUN_CLM = "examples/pytorch/language-modeling/run_clm.py"
_TRANSFORMERS = "macorisd/transformers-qwen3"
_FORK = "the repository is a copy of huggingface/transformers, version 4.57"
_GLOO = "gloo in place of NCCL"
_SHAMPOO = "distributed_shampoo/examples/cifar10_example.py"
_RANDOM_CIFAR = "random pictures in the format of CIFAR-10, whose checksum is not compared"
_WLM = "--data ./data/wikitext-2 --epochs 1 --log-interval 10"


def _sharded_cifar(name: str, arguments: str) -> Script:
    """The example of facebookresearch/optimizers under FSDP2, on two processes over gloo."""
    return Script(
        name,
        "facebookresearch/optimizers",
        _SHAMPOO,
        f"parallelism=fully_shard backend=gloo local_batch_size=16 {arguments}",
        None,
        data="cifar",
        processes=2,
        start=".",
        paths=(".",),
        environment={"SCRIPTS_UNCHECKED": "1"},
        note=f"two processes; {_RANDOM_CIFAR}",
    )


SCRIPTS: tuple[Script, ...] = (
    Script(
        "nanogpt-char",
        "karpathy/nanoGPT",
        "train.py",
        "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=5 "
        "--eval_interval=25 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
        "--max_iters=60 --lr_decay_iters=60 --dropout=0.0",
        "config/train_shakespeare_char.py --compile=False --eval_iters=5 --eval_interval=25 "
        "--max_iters=60",
        data="nanogpt",
        note=_RANDOM_TEXT,
    ),
    Script(
        "nanogpt-gpt2",
        "karpathy/nanoGPT",
        "train.py",
        "--device=cpu --compile=False --eval_iters=2 --eval_interval=20 --block_size=32 "
        "--batch_size=2 --n_layer=2 --n_head=4 --n_embd=64 --max_iters=30 "
        "--gradient_accumulation_steps=4",
        "--compile=False --eval_iters=2 --eval_interval=20 --max_iters=40 "
        "--gradient_accumulation_steps=4",
        data="nanogpt",
        note="random tokens; fewer microbatches",
    ),
    Script(
        "mingpt-chargpt",
        "karpathy/minGPT",
        "projects/chargpt/chargpt.py",
        "--model.model_type=gpt-nano --trainer.num_workers=0 --trainer.max_iters=60 "
        "--trainer.batch_size=16",
        "--model.model_type=gpt2 --trainer.num_workers=0 --trainer.max_iters=60",
        data="characters",
        paths=(".",),
        note=_RANDOM_TEXT,
    ),
    Script(
        "makemore",
        "karpathy/makemore",
        "makemore.py",
        "--max-steps 60 --num-workers 0",
        "--max-steps 60 --num-workers 0 --device cuda --n-layer 12 --n-head 12 --n-embd 768 "
        "--batch-size 256",
        note="a larger model than the default on the GPU",
    ),
    Script(
        "mnist",
        _EXAMPLES,
        "mnist/main.py",
        "--epochs 2 --no-accel",
        "--epochs 2 --batch-size 512",
        data="mnist",
        note=_RANDOM_MNIST,
    ),
    Script(
        "dcgan",
        _EXAMPLES,
        "dcgan/main.py",
        "--dataset fake --niter 2 --manualSeed 1 --workers 0 --ngf 8 --ndf 8 --batchSize 32",
        "--dataset fake --niter 3 --manualSeed 1 --workers 0 --accel",
    ),
    Script(
        "vae",
        _EXAMPLES,
        "vae/main.py",
        "--epochs 2 --no-accel",
        "--epochs 2 --batch-size 512",
        data="mnist",
        note=_RANDOM_MNIST,
    ),
    Script(
        "word-lstm",
        _EXAMPLES,
        "word_language_model/main.py",
        f"{_WLM} --model LSTM --emsize 64 --nhid 64",
        f"{_WLM} --model LSTM --accel --emsize 650 --nhid 650 --dropout 0.5 --tied",
        data="wikitext",
        note=_RANDOM_TEXT,
    ),
    Script(
        "word-transformer",
        _EXAMPLES,
        "word_language_model/main.py",
        f"{_WLM} --model Transformer --lr 5 --emsize 64 --nhid 64",
        f"{_WLM} --model Transformer --lr 5 --accel",
        data="wikitext",
        note=_RANDOM_TEXT,
    ),
    Script(
        "super-resolution",
        _EXAMPLES,
        "super_resolution/main.py",
        "--upscale_factor 8 --batchSize 2 --testBatchSize 5 --nEpochs 2 --threads 0",
        None,
        data="bsds",
        note="random pictures of BSDS300's size; not on the pretended GPU, where a loss that it "
        "divides by is 0",
    ),
    Script(
        "sine-lbfgs",
        _EXAMPLES,
        "time_sequence_prediction/train.py",
        "--steps 15",
        None,
        data="sines",
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        note="shorter waves; torch.load as before torch 2.6; the script is for the CPU alone",
    ),
    Script(
        "siamese",
        _EXAMPLES,
        "siamese_network/main.py",
        "--epochs 1 --no-accel --batch-size 32 --test-batch-size 100",
        "--epochs 2 --batch-size 512",
        data="mnist",
        note=_RANDOM_MNIST,
    ),
    Script(
        "mnist-rnn",
        _EXAMPLES,
        "mnist_rnn/main.py",
        "--epochs 2",
        "--epochs 2 --batch-size 512 --accel",
        data="mnist",
        note=_RANDOM_MNIST,
    ),
    Script(
        "run-clm",
        _TRANSFORMERS,
        _RUN_CLM,
        f"{_CLM} {_TRAINER} --block_size 128 --max_steps 50 --eval_steps 20 --use_cpu "
        "--per_device_train_batch_size 4",
        f"--model_name_or_path model {_TEXT} --do_train {_TRAINER} --block_size 1024 "
        "--max_steps 50 --per_device_train_batch_size 4",
        data="causal",
        start=".",
        note=f"{_RANDOM_MODEL}; a metric in place of the downloaded one; no evaluation on the "
        f"pretended GPU, where it would read sizes; {_FORK}",
    ),
    Script(
        "run-glue",
        _TRANSFORMERS,
        "examples/pytorch/text-classification/run_glue.py",
        "--model_name_or_path model --train_file train.csv --validation_file validation.csv "
        f"--do_train --do_eval {_TRAINER} --pad_to_max_length False --use_cpu "
        "--per_device_train_batch_size 8 --max_steps 60",
        "--model_name_or_path model --train_file train.csv --validation_file validation.csv "
        f"--do_train {_TRAINER} --pad_to_max_length False "
        "--per_device_train_batch_size 32 --num_train_epochs 3",
        data="glue",
        changing=True,
        start=".",
        note=f"{_RANDOM_MODEL}; a metric in place of the downloaded one; {_FORK}",
    ),
    Script(
        "trl-sft",
        "huggingface/trl",
        "trl/scripts/sft.py",
        f"--model_name_or_path model --dataset_name conversations {_TRAINER} --use_cpu "
        "--per_device_train_batch_size 4 --max_steps 50 --bf16 False "
        "--gradient_checkpointing False",
        f"--model_name_or_path model --dataset_name conversations {_TRAINER} "
        "--per_device_train_batch_size 4 --max_steps 50",
        data="conversations",
        changing=True,
        start=".",
        note=_RANDOM_MODEL,
    ),
    Script(
        "timm",
        "huggingface/pytorch-image-models",
        "train.py",
        "--data-dir pictures --model resnet10t --num-classes 2 --img-size 64 --batch-size 8 "
        "--epochs 2 --workers 1 --device cpu",
        "--data-dir pictures --model vit_base_patch16_224 --num-classes 2 --batch-size 8 "
        "--epochs 2 --workers 1",
        data="pictures",
        note="random pictures",
    ),
    Script(
        "lightning-autoencoder",
        "Lightning-AI/pytorch-lightning",
        "examples/pytorch/basics/autoencoder.py",
        "--trainer.max_epochs 2 --trainer.limit_train_batches 40 --trainer.limit_val_batches 10 "
        "--trainer.accelerator cpu",
        "--trainer.max_epochs 2 --trainer.limit_train_batches 40 --trainer.limit_val_batches 10 "
        "--data.batch_size 512",
        data="lightning-mnist",
        note=_RANDOM_MNIST,
    ),
    Script(
        "accelerate-nlp",
        "huggingface/accelerate",
        "examples/nlp_example.py",
        "--cpu",
        "",
        data="mrpc",
        changing=True,
        note=f"{_RANDOM_MODEL}; a metric in place of the downloaded one",
    ),
    Script(
        "run-clm-ddp",
        _TRANSFORMERS,
        _RUN_CLM,
        f"{_CLM} {_TRAINER} --block_size 128 --max_steps 40 --eval_steps 20 --use_cpu "
        "--per_device_train_batch_size 2 --ddp_backend gloo",
        None,
        data="causal",
        processes=2,
        start=".",
        note=f"two processes; {_RANDOM_MODEL}; {_FORK}",
    ),
    Script(
        "nanogpt-ddp",
        "karpathy/nanoGPT",
        "train.py",
        None,
        "--backend=gloo --compile=False --eval_iters=2 --eval_interval=12 --max_iters=24 "
        "--always_save_checkpoint=False "
        "--gradient_accumulation_steps=4",
        data="nanogpt",
        processes=2,
        note="two processes; random tokens",
    ),
    Script(
        "nanogpt-compiled",
        "karpathy/nanoGPT",
        "train.py",
        None,
        None,
        data="nanogpt",
        fits="config/train_shakespeare_char.py",
        note=f"{_RANDOM_TEXT}; compiled, as it is by default",
    ),
    Script(
        "imagenet",
        _EXAMPLES,
        "imagenet/main.py",
        None,
        None,
        fits="--dummy --arch resnet50 --batch-size 64",
    ),
    Script(
        "imagenet-ddp",
        _EXAMPLES,
        "imagenet/main.py",
        None,
        None,
        processes=4,
        fits="--dummy --arch vit_b_16 --batch-size 256 --multiprocessing-distributed "
        "--world-size 1 --rank 0 --dist-url tcp://127.0.0.1:29500",
        note="four processes",
    ),
    Script(
        "trl-sft-lora",
        "huggingface/trl",
        "trl/scripts/sft.py",
        None,
        None,
        data="conversations",
        start=".",
        fits=f"--model_name_or_path model --dataset_name conversations {_TRAINER} "
        "--per_device_train_batch_size 4 --use_peft --lora_r 16 "
        "--lora_target_modules q_proj v_proj",
        note=_RANDOM_MODEL,
    ),
    Script(
        "timm-resnet50",
        "huggingface/pytorch-image-models",
        "train.py",
        None,
        None,
        data="pictures",
        fits="--data-dir pictures --model resnet50 --num-classes 2 --batch-size 16 --amp "
        "--model-ema --mixup 0.2",
        note="random pictures",
    ),
    Script(
        "lightning-transformer",
        "Lightning-AI/pytorch-lightning",
        "examples/pytorch/basics/transformer.py",
        None,
        None,
        data="lightning-text",
        fits="",
        note=_RANDOM_TEXT,
    ),
    Script(
        "fsdp2",
        _EXAMPLES,
        "distributed/FSDP2/example.py",
        None,
        "",
        processes=4,
        note=f"four processes; {_GLOO}",
    ),
    Script(
        "fsdp2-mixed",
        _EXAMPLES,
        "distributed/FSDP2/example.py",
        None,
        "--mixed-precision --explicit-prefetching --dcp-api",
        processes=2,
        note=f"two processes; {_GLOO}",
    ),
    Script(
        "fsdp-tp",
        _EXAMPLES,
        "distributed/tensor_parallelism/fsdp_tp_example.py",
        None,
        "",
        processes=4,
        paths=("distributed/tensor_parallelism",),
        note=f"four processes; {_GLOO}",
    ),
    _sharded_cifar("fsdp2-cifar", "optimizer=adamw"),
    _sharded_cifar(
        "fsdp2-shampoo",
        "optimizer=shampoo optimizer.precondition_frequency=15 "
        "optimizer.max_preconditioner_dim=64 out_channels=8 checkpoint_dir=out",
    ),
)


def chosen(patterns: Sequence[str]) -> list[Script]:
    """The scripts whose name is one of these, or matches one."""
    return [s for s in SCRIPTS if any(fnmatch.fnmatchcase(s.name, p) for p in patterns)]
