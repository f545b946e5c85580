package keyring

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// The names in a trust directory. Other tools are given these files.
const (
	AttestationPublicFile = "att.pub"
	LogVKeyFile           = "log.vkey"
	TrustedRootFile       = "trusted_root.json"
)

// trustedRoot is a Sigstore trusted root that holds one log and nothing else,
// in the JSON form of protobuf-specs v0.5.2. After a rotation the log is there once for each of
// its keys, under one name.
//
// checkpointKeyId is left out and logId.keyId is the full digest: Go verifiers accept
// either, the JavaScript one takes its first four bytes for the note key hash. Verifiers
// compare the host of baseUrl with the origin; nothing is ever fetched from it.
type trustedRoot struct {
	MediaType string     `json:"mediaType"`
	TLogs     []trustLog `json:"tlogs"`
}

type trustLog struct {
	BaseURL       string   `json:"baseUrl"`
	HashAlgorithm string   `json:"hashAlgorithm"`
	PublicKey     trustKey `json:"publicKey"`
	LogID         trustID  `json:"logId"`
}

type trustKey struct {
	RawBytes   []byte `json:"rawBytes"`
	KeyDetails string `json:"keyDetails"`
	ValidFor   Period `json:"validFor"` // begins with the epoch: the log states no time
}

type trustID struct {
	KeyID []byte `json:"keyId"`
}

// TrustedRoot returns the trusted_root.json for a log that has had this key only.
func (p *LogPublic) TrustedRoot() ([]byte, error) { return NewLogHistory(p).TrustedRoot() }

// TrustedRoot returns the trusted_root.json for the history of a log's keys.
func (h *History) TrustedRoot() ([]byte, error) {
	root := trustedRoot{MediaType: "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}
	for i := range h.Keys {
		p, err := ParseVKey(h.Keys[i].VKey)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKIXPublicKey(p.Key)
		if err != nil {
			return nil, fmt.Errorf("encode log key: %w", err)
		}
		root.TLogs = append(root.TLogs, trustLog{
			BaseURL:       "https://" + p.Origin,
			HashAlgorithm: "SHA2_256",
			PublicKey:     trustKey{RawBytes: der, KeyDetails: "PKIX_ED25519", ValidFor: h.Keys[i].ValidFor},
			LogID:         trustID{KeyID: p.ID[:]},
		})
	}
	b, err := canon.Marshal(root)
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// ownFiles returns the files of a trust directory that follow from r. While a key is prepared
// those of its kind aren't among them: Publish brings them up to date.
func (r *Ring) ownFiles(dir string) ([]publicFile, error) {
	root, err := r.log.Public().TrustedRoot()
	if err != nil {
		return nil, err
	}
	var files []publicFile
	for _, k := range []struct {
		prepared        bool
		h               *History
		published, kept string // the history in trust/ and in keys/
		single          []publicFile
	}{
		{r.nextLog != nil, r.logHistory, LogHistoryFile, logHistoryFile,
			[]publicFile{{LogVKeyFile, []byte(r.log.VKey() + "\n")}, {TrustedRootFile, root}}},
		{r.next != nil, r.history, HistoryFile, historyFile, []publicFile{{AttestationPublicFile, r.att.PublicPEM()}}},
	} {
		switch {
		case k.prepared:
		case k.h != nil:
			b, err := k.h.Encode()
			if err != nil {
				return nil, err
			}
			more, err := k.h.publicFiles(b)
			if err != nil {
				return nil, err
			}
			files = append(files, more...)
		default:
			if _, err := os.Lstat(filepath.Join(dir, k.published)); !errors.Is(err, os.ErrNotExist) {
				if err != nil {
					return nil, err
				}
				return nil, fault.New(fault.BadState, "state_missing", fmt.Sprintf("export public keys to %q", dir), fmt.Errorf("there is %q, but no %q in keys/", k.published, k.kept)).
					WithHint(fmt.Sprintf("copy trust/%s to keys/%s, mode 0600; palyra journal verify then compares it with the journal", k.published, k.kept))
			}
			files = append(files, k.single...)
		}
	}
	return files, nil
}

// exportTrust writes missing public halves and refuses different ones.
func (r *Ring) exportTrust(dir string) error {
	op := fmt.Sprintf("export public keys to %q", dir)
	files, err := r.ownFiles(dir)
	if err != nil {
		return durable.Fault(op, err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		got, err := durable.ReadRegular(path, maxHistory)
		if errors.Is(err, os.ErrNotExist) {
			if err := durable.MkdirAll(dir, 0o755); err != nil {
				return durable.Fault(op, err)
			}
			if err := durable.WriteFile(path, f.want, 0o644); err != nil {
				return durable.Fault(op, err)
			}
			continue
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(got, f.want) {
			return fault.New(fault.Integrity, "trust_corrupt", fmt.Sprintf("check %q", path),
				errors.New("does not belong to the keys of this state directory")).
				WithHint("remove it to have it written again, after asking who changed it")
		}
	}
	return nil
}
