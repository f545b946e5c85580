package vault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"filippo.io/age"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// MaxExport is the most secrets of one export: a person reads their names.
const MaxExport = 256

// Item names a version of a secret.
type Item struct {
	Ref     Ref
	Version uint64
}

// export is what an export encrypts.
type export struct {
	Version int              `json:"version"` // 1
	Vault   string           `json:"vault"`
	Secrets []exportedSecret `json:"secrets"`
}

type exportedSecret struct {
	Ref     Ref        `json:"ref"`
	Version uint64     `json:"version"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires"` // null: never
	Value   []byte     `json:"value"`
}

// ExportRecipient is the reader of an export: a recipient of age.
type ExportRecipient struct{ age age.Recipient }

// ParseExportRecipient reads a recipient as age-keygen prints it.
func ParseExportRecipient(s string) (*ExportRecipient, error) {
	const op = "read recipient"
	if !strings.HasPrefix(s, "age1") || strings.ContainsAny(s, "\r\n") {
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("want one of age, which begins with age1"))
	}
	rs, err := age.ParseRecipients(strings.NewReader(s))
	if err != nil || len(rs) != 1 {
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("age doesn't take it"))
	}
	if text, ok := rs[0].(fmt.Stringer); !ok || text.String() != s {
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("age spells it in another way"))
	}
	return &ExportRecipient{rs[0]}, nil
}

// Export returns versions of secrets, all of one state of the vault, as a file of age for a
// recipient. An expired one is refused.
func (v *Vault) Export(ctx context.Context, to *ExportRecipient, items []Item) (file []byte, infos []Info, err error) {
	const op = "export secrets"
	if len(items) == 0 || len(items) > MaxExport {
		return nil, nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("%d secrets, want 1 to %d", len(items), MaxExport))
	}
	doc := export{Version: 1}
	defer func() {
		for _, s := range doc.Secrets {
			clear(s.Value)
		}
	}()
	err = v.with(ctx, func() error {
		doc.Vault = v.head.Vault
		for _, it := range items {
			s, i, err := v.get(it.Ref, it.Version)
			if err != nil {
				return err
			}
			infos = append(infos, i)
			doc.Secrets = append(doc.Secrets, exportedSecret{i.Ref, i.Version, i.Created, i.Expires, bytes.Clone(s.Bytes())})
			s.Wipe()
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	text, err := canon.Marshal(doc)
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "internal", op, err)
	}
	defer clear(text)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to.age)
	if err == nil {
		_, err = w.Write(text)
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "internal", op, err)
	}
	return out.Bytes(), infos, nil
}
