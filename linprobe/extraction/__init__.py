"""Images to feature files. Only this folder imports torchvision, open_clip and timm."""
