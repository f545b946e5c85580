package vault

import (
	"context"
	"fmt"

	"palyra/crypt/seal"
	"palyra/internal/fault"
)

// maxOwn bounds the keys that a vault keeps for the program itself.
const maxOwn = 16

// OwnKey returns a key that the vault keeps for the program itself, and makes it on first use if
// create is set; without it, none is fault.NotFound. The caller wipes it.
//
// It's in the sealed index and no secret: no reference names it, so no call can list, reveal, use,
// export or remove it. A rotation seals the index again, and the key with it, unchanged.
func (v *Vault) OwnKey(ctx context.Context, name string, create bool) (k *seal.Key, err error) {
	op := fmt.Sprintf("open key %q", name)
	err = v.with(ctx, func() error {
		if b, ok := v.idx.Own[name]; ok {
			k, err = seal.ParseKey(append([]byte(nil), b...))
			if err != nil {
				return fault.New(fault.Integrity, "store_corrupt", op, err)
			}
			return nil
		}
		if !create {
			return fault.New(fault.NotFound, "not_found", op, fmt.Errorf("the vault has none"))
		}
		if len(v.idx.Own) >= maxOwn || name == "" {
			return fault.New(fault.Internal, "internal", op, fmt.Errorf("the vault has %d", len(v.idx.Own)))
		}
		idx := v.idx.clone()
		if idx.Own == nil {
			idx.Own = make(map[string][]byte)
		}
		fresh := seal.NewKey()
		idx.Own[name] = append([]byte(nil), fresh.Bytes()...)
		if err := v.commit(ctx, v.head, idx, v.kek); err != nil {
			fresh.Wipe()
			return err
		}
		k = fresh
		return nil
	})
	return k, err
}
