"""timm's networks of `imports.py --timm`: for each its name there, arguments that make it small, and the side of its images."""

from __future__ import annotations

from typing import Any

TIMM: dict[str, tuple[str, dict[str, Any], int]] = {
    "ResNet-50": ("resnet50", dict(layers=(1, 1, 1, 1)), 64),
    "ResNet-50-D": ("resnet50d", dict(layers=(1, 1, 1, 1)), 64),
    "SE-ResNet-50": ("seresnet50", dict(layers=(1, 1, 1, 1)), 64),
    "ResNeSt-50d": ("resnest50d", dict(layers=(1, 1, 1, 1)), 64),
    "ResNetV2-50 (BiT)": ("resnetv2_50x1_bit", {}, 64),
    "DenseNet-121": ("densenet121", dict(block_config=(2, 2, 2, 2)), 64),
    "EfficientNet-B0": ("efficientnet_b0", {}, 64),
    "EfficientNetV2-S": ("efficientnetv2_s", {}, 64),
    "MobileNetV3 large": ("mobilenetv3_large_100", {}, 64),
    "RegNetY-400MF": ("regnety_004", {}, 64),
    "NFNet-F0": ("dm_nfnet_f0", {}, 64),
    "ConvNeXt": ("convnext_tiny", dict(depths=(1, 1, 1, 1), dims=(8, 16, 32, 64)), 64),
    "ConvNeXt V2": ("convnextv2_tiny", dict(depths=(1, 1, 1, 1), dims=(8, 16, 32, 64)), 64),
    "ViT": ("vit_base_patch16_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "DeiT III": ("deit3_base_patch16_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "BEiT": ("beit_base_patch16_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "EVA-02": ("eva02_tiny_patch14_224", dict(img_size=28, patch_size=7, embed_dim=48, depth=2, num_heads=4), 28),
    "Swin": (
        "swin_tiny_patch4_window7_224",
        dict(img_size=32, patch_size=2, embed_dim=16, depths=(1, 1), num_heads=(2, 4), window_size=4), 32,
    ),
    "Swin V2": (
        "swinv2_tiny_window8_256",
        dict(img_size=32, patch_size=2, embed_dim=16, depths=(1, 1), num_heads=(2, 4), window_size=4), 32,
    ),
    "MLP-Mixer": ("mixer_s32_224", dict(img_size=64), 64),
    "MaxViT": ("maxvit_tiny_tf_224", dict(img_size=64), 64),
    "CoAtNet": ("coatnet_0_rw_224", dict(img_size=64), 64),
    "LeViT-128S": ("levit_128s", {}, 224),
    "MobileViT-S": ("mobilevit_s", {}, 64),
    "VOLO-D1": ("volo_d1_224", dict(img_size=64), 64),
    "ConViT": ("convit_tiny", dict(img_size=64, embed_dim=48, depth=4, num_heads=4, local_up_to_layer=2), 64),
}
CLASSES = 10


def timm_module(name: str) -> tuple[Any, dict[str, Any]]:
    """One of timm's networks with random weights, in training, and images for it. Needs timm and torchvision."""
    import timm
    import torch

    torch.manual_seed(0)
    kind, options, side = TIMM[name]
    module = timm.create_model(kind, num_classes=CLASSES, **options).train()
    return module, {"x": torch.zeros(4, 3, side, side)}
