package local

import (
	"context"

	"palyra/crypt/keyring"
	"palyra/hub"
)

// keyOperations returns the operations of signing keys.
func (h *Hub) keyOperations() []hub.Entry {
	return []hub.Entry{hub.ListKeys.By(h.listKeys), hub.RotateKey.By(h.rotateKey)}
}

func (h *Hub) listKeys(context.Context, hub.Caller, hub.None) (hub.Page[hub.Key], error) {
	return hub.Page[hub.Key]{Items: append(keysOf(h.k.Keys()), keysOf(h.k.LogKeys())...)}, nil
}

func (h *Hub) rotateKey(ctx context.Context, c hub.Caller, r hub.KeyRotation) (hub.Page[hub.Key], error) {
	if err := h.room(c); err != nil {
		return hub.Page[hub.Key]{}, err
	}
	rotate := h.k.RotateKey
	if r.Log {
		rotate = h.k.RotateLogKey
	}
	if _, err := rotate(ctx, c.User, r.IntroduceOnly); err != nil {
		return hub.Page[hub.Key]{}, err
	}
	return h.listKeys(ctx, c, hub.None{})
}

func keysOf(k *keyring.History) (keys []hub.Key) {
	for i := range k.Keys {
		t := &k.Keys[i]
		keys = append(keys, hub.Key{Signs: k.Signs(), Hint: t.Hint, File: k.FileOf(t), State: k.StateOf(t), From: t.From, To: t.To, Start: t.ValidFor.Start, End: t.ValidFor.End})
	}
	return keys
}
