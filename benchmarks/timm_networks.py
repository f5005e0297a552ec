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
    "CaiT": ("cait_xxs24_224", dict(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4), 32),
    "XCiT": ("xcit_nano_12_p16_224", dict(img_size=64, embed_dim=32, depth=2, num_heads=4), 64),
    "CoaT": ("coat_lite_tiny", dict(img_size=64, embed_dims=(64, 64, 64, 64), serial_depths=(1, 1, 1, 1), num_heads=8), 64),
    "CoaT parallel": (
        "coat_tiny",
        dict(img_size=64, embed_dims=(64, 64, 64, 64), serial_depths=(1, 1, 1, 1), parallel_depth=1, num_heads=8), 64,
    ),
    "PVT v2": ("pvt_v2_b0", dict(depths=(1, 1, 1, 1)), 64),
    "Twins PCPVT": (
        "twins_pcpvt_small",
        dict(img_size=64, depths=(1, 1, 1, 1), embed_dims=(16, 32, 32, 64), num_heads=(1, 2, 2, 4)), 64,
    ),
    "Twins SVT": (
        "twins_svt_small",
        dict(num_heads=(2, 2, 4, 4), img_size=64, depths=(1, 1, 1, 1), embed_dims=(32, 32, 64, 64)), 64,
    ),
    "EfficientFormer": ("efficientformer_l1", dict(embed_dims=(16, 32, 32, 64), depths=(1, 1, 1, 2)), 224),
    "EdgeNeXt": ("edgenext_xx_small", {}, 64),
    "FastViT": ("fastvit_t8", dict(layers=(1, 1, 1, 1), embed_dims=(16, 32, 32, 64)), 64),
    "HRNet": ("hrnet_w18_small", {}, 64),
    "DeiT distilled": (
        "deit_tiny_distilled_patch16_224",
        dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32,
    ),
    "ViT registers (DINOv2)": (
        "vit_small_patch14_reg4_dinov2",
        dict(img_size=28, patch_size=7, embed_dim=48, depth=2, num_heads=4), 28,
    ),
    "ViT SO400M (SigLIP)": (
        "vit_so400m_patch14_siglip_224",
        dict(img_size=28, patch_size=7, embed_dim=48, depth=2, num_heads=4), 28,
    ),
    "ViT DINOv3": ("vit_small_patch16_dinov3", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "ViT RoPE": ("vit_base_patch16_rope_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "BEiT v2": ("beitv2_base_patch16_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "FlexiViT": ("flexivit_small", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "EVA": ("eva_large_patch14_196", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "ViT relpos": ("vit_relpos_base_patch16_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "BEiT3": ("beit3_base_patch16_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "ViT SRelPos": ("vit_srelpos_small_patch16_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "DeepSeek ViT": ("deepseek_vit_412m", dict(img_size=56, embed_dim=64, depth=2, num_heads=4), 56),
    "NaFlexViT": ("naflexvit_base_patch16_gap", dict(embed_dim=64, depth=2, num_heads=4), 64),
    "ViT parallel": ("vit_small_patch16_18x2_224", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "TNT": ("tnt_s_patch16_224", dict(img_size=32, patch_size=8, embed_dim=48, inner_dim=16, depth=2, num_heads_outer=4), 32),
    "ViT PE": ("vit_pe_core_tiny_patch16_384", dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 32),
    "VisFormer": ("visformer_tiny", dict(img_size=64, init_channels=8, embed_dim=48, depth=(1, 1, 1), num_heads=3), 64),
    "Qwen3 ViT": ("qwen3_vit_88m", dict(img_size=64, embed_dim=64, depth=2, num_heads=4), 64),
    "Sequencer2D": ("sequencer2d_s", dict(layers=(1, 1, 1, 1), embed_dims=(32, 32, 32, 32), hidden_sizes=(8, 16, 16, 16)), 64),
    "SamViT": (
        "samvit_base_patch16_224",
        dict(img_size=64, patch_size=8, embed_dim=64, depth=2, num_heads=4, window_size=4, global_attn_indexes=(1,)), 64,
    ),
    "RepViT": ("repvit_m0_9", dict(embed_dim=(16, 32, 32, 64), depth=(1, 1, 1, 1)), 64),
    "Hiera": ("hiera_tiny_224", dict(img_size=(64, 64), stages=(1, 1, 1, 1), embed_dim=16), 64),
    "MambaOut": ("mambaout_femto", dict(depths=(1, 1, 1, 1)), 64),
    "InceptionNeXt": ("inception_next_atto", dict(depths=(1, 1, 1, 1)), 64),
    "FasterNet": ("fasternet_t0", {}, 64),
    "LCNet": ("lcnet_050", {}, 64),
    "CrossViT": ("crossvit_tiny_240", dict(img_size=240, depth=((1, 1, 0),)), 240),
    "TinyViT": (
        "tiny_vit_5m_224",
        dict(embed_dims=(16, 32, 32, 64), num_heads=(1, 2, 2, 4), depths=(1, 1, 1, 1), window_sizes=(4, 4, 4, 2)), 64,
    ),
    "S3 Swin": ("swin_s3_tiny_224", dict(img_size=224, depths=(1, 1, 1, 1), embed_dim=24), 224),
    "MNASNet": ("mnasnet_small", {}, 64),
    "gMLP": ("gmlp_ti16_224", dict(img_size=64), 64),
    "iFormer": ("iformer_t", {}, 64),
    "SKNet": ("skresnet18", dict(layers=(1, 1, 1, 1)), 64),
    "StarNet": ("starnet_s1", {}, 64),
    "SwinV2-CR": (
        "swinv2_cr_tiny_224",
        dict(img_size=64, patch_size=2, depths=(1, 1, 1, 1), embed_dim=16, num_heads=(1, 2, 2, 4), window_size=4), 64,
    ),
    "PoolFormer": ("poolformer_s12", dict(depths=(1, 1, 1, 1), dims=(16, 32, 32, 64)), 64),
    "FocalNet": ("focalnet_tiny_srf", dict(depths=(1, 1, 1, 1), embed_dim=16), 64),
    "MobileNet v4": ("mobilenetv4_conv_small_035", {}, 64),
    "Res2Net": ("res2net50_26w_4s", dict(layers=(1, 1, 1, 1)), 64),
    "HardCoRe-NAS": ("hardcorenas_a", {}, 64),
    "DaViT": ("davit_tiny", dict(depths=(1, 1, 1, 1), embed_dims=(16, 32, 32, 64), num_heads=(1, 2, 2, 4)), 224),
    "PiT": ("pit_ti_224", dict(img_size=64, base_dims=(16, 16, 16), depth=(1, 1, 1)), 64),
    "EfficientViT (MIT)": ("efficientvit_b0", {}, 64),
    "EfficientViT (MSRA)": ("efficientvit_m0", dict(img_size=224), 224),
    "SHViT": ("shvit_s1", {}, 64),
    "SwiftFormer": ("swiftformer_xs", {}, 64),
    "DLA": ("dla34", dict(levels=(1, 1, 1, 1, 1, 1), channels=(16, 16, 16, 32, 32, 32)), 64),
    "DPN": ("dpn48b", {}, 64),
    "VoVNet": ("ese_vovnet19b_slim_dw", {}, 64),
    "HGNet": ("hgnet_tiny", {}, 64),
    "CSPNet": ("cspresnet50", {}, 64),
    "ViT hybrid": ("vit_tiny_r_s16_p8_224", dict(img_size=64, embed_dim=48, depth=2, num_heads=4), 64),
    "EfficientViM": ("efficientvim_m1", {}, 64),
    "LowFormer": ("lowformer_b0", {}, 64),
    "LCNetV2": ("lcnetv2_base", {}, 64),
    "CSPNeXt": ("cspnext_tiny", {}, 64),
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
