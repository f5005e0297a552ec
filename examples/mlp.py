"""Train a network of linear layers on handwritten digits under a strategy that you can swap.

    mpirun -n 4 python examples/mlp.py                          # scikit-learn's digits, 64 numbers each
    mpirun -n 4 python examples/mlp.py --mapper expert          # layers cut by channels
    mpirun -n 4 python examples/mlp.py --preset paper --data DIR  # pictures of DIR/train and DIR/val, as grey 28 x 28
"""

from taskflow.training.networks.mlp import main

if __name__ == "__main__":
    main()
