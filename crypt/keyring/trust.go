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
// in the JSON form of protobuf-specs v0.5.2.
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
	RawBytes   []byte   `json:"rawBytes"`
	KeyDetails string   `json:"keyDetails"`
	ValidFor   validFor `json:"validFor"`
}

// validFor begins with the epoch: entries carry no time, and a key that stops
// being valid is replaced by another trusted root.
type validFor struct {
	Start string `json:"start"`
}

type trustID struct {
	KeyID []byte `json:"keyId"`
}

// TrustedRoot returns the trusted_root.json for a log.
func (p *LogPublic) TrustedRoot() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(p.Key)
	if err != nil {
		return nil, fmt.Errorf("encode log key: %w", err)
	}
	b, err := canon.Marshal(trustedRoot{
		MediaType: "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
		TLogs: []trustLog{{
			BaseURL:       "https://" + p.Origin,
			HashAlgorithm: "SHA2_256",
			PublicKey:     trustKey{RawBytes: der, KeyDetails: "PKIX_ED25519", ValidFor: validFor{Start: "1970-01-01T00:00:00Z"}},
			LogID:         trustID{KeyID: p.ID[:]},
		}},
	})
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// exportTrust writes missing public halves and refuses different ones. While a key is prepared it
// looks at the log's alone: Publish brings the others up to date.
func (r *Ring) exportTrust(dir string) error {
	op := fmt.Sprintf("export public keys to %q", dir)
	pub := &LogPublic{Origin: r.log.origin, Key: r.log.pub(), ID: r.log.KeyID()}
	root, err := pub.TrustedRoot()
	if err != nil {
		return fault.New(fault.Internal, "internal", "encode trusted root", err)
	}
	files := []publicFile{{LogVKeyFile, []byte(r.log.VKey() + "\n")}, {TrustedRootFile, root}}
	switch {
	case r.next != nil:
	case r.history != nil:
		b, err := r.history.Encode()
		if err != nil {
			return fault.New(fault.Internal, "internal", "encode history of keys", err)
		}
		files = append(files, r.history.publicFiles(b)...)
	default:
		if _, err := os.Lstat(filepath.Join(dir, HistoryFile)); !errors.Is(err, os.ErrNotExist) {
			if err != nil {
				return durable.Fault(op, err)
			}
			return fault.New(fault.BadState, "state_missing", op, fmt.Errorf("there is %q, but no %q in keys/", HistoryFile, historyFile)).
				WithHint("copy trust/keys.json to keys/att.json, mode 0600; palyra journal verify then compares it with the journal")
		}
		files = append(files, publicFile{AttestationPublicFile, r.att.PublicPEM()})
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
