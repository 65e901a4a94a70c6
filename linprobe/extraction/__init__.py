"""Images to feature files; the only folder that imports torchvision, open_clip, timm, Pillow or safetensors."""
