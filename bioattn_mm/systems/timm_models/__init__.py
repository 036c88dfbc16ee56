"""The backbones as models of timm: registered when timm is imported, built when timm creates one."""
