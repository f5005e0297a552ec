"""Train LeNet-5 on handwritten digits under a strategy that you can swap.

    mpirun -n 4 python examples/lenet.py                        # scikit-learn's digits, 8 x 8
    mpirun -n 4 python examples/lenet.py --mapper expert        # dense layers cut by channels
    mpirun -n 4 python examples/lenet.py --preset paper --data DIR  # pictures of DIR/train and DIR/val, as grey 28 x 28
"""

from taskflow.training.networks.lenet import main

if __name__ == "__main__":
    main()
