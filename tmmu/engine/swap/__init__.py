"""Sessions that leave the device and come back: what the policies decide, carried out on streams of a device."""
