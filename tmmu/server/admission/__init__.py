"""Who is taken on: the rights of a key, the class of a request, slots of classes, quotas."""
