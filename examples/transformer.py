"""Train a Transformer to translate, under a strategy that you can swap, and let it translate.

    mpirun -n 4 python examples/transformer.py                       # 4 ranks, data parallel
    mpirun -n 4 python examples/transformer.py --mapper search       # finds a plan first, for 5 seconds
    python examples/transformer.py --processors 4 --language de      # four virtual processors in one process
    python examples/transformer.py --data news.en --data news.de --steps 5000

The default text is what this machine's programs say in English and how their translators put it in another language.
"""

from taskflow.training.networks.transformer import main

if __name__ == "__main__":
    main()
