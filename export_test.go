package warmwatch

// MakeInformer has the Cache make an informer until done is called.
func (c *Cache) MakeInformer() (done func()) {
	c.opening.RLock()
	return c.opening.RUnlock
}
