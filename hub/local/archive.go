package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"palyra/authz/policy"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// The state directory keeps the policy sets that were in force, so that earlier decisions
// can still be explained and exported. The sets are neither secret nor authority: the hub
// finds a set by its digest, which the receipt names, and doesn't use one that differs from
// its name.
const (
	archiveDir   = "policy-sets"
	archiveSets  = 64        // kept at most, the newest
	archiveBytes = 128 << 20 // of all of them
	archiveEach  = 32 << 20  // of one: the texts, at most 16 MiB, as JSON
)

// kept is a set as it is stored. Before version 1 a file held the policies alone, and the schema
// is the one of the program that reads it, or else unknown.
type kept struct {
	Version  int               `json:"version"` // keptVersion
	Schema   string            `json:"schema"`
	Policies map[string]string `json:"policies"` // policy.Set.Texts
}

const keptVersion = 1

// keptPrefix begins the file of a set that is stored in this version or a later one.
const keptPrefix = `{"version":`

// archive keeps the set in force. A failure is no reason to stop deciding.
func (h *Hub) archive() {
	if err := h.keepSet(h.k.PolicySet()); err != nil {
		h.cfg.Log.Warn("keep policy set", "error", err)
	}
}

func (h *Hub) setFile(d canon.Digest) string {
	return filepath.Join(h.k.StateDir(), archiveDir, d.Hex()+".json")
}

func (h *Hub) keepSet(s *policy.Set) error {
	h.archiving.Lock()
	defer h.archiving.Unlock()
	const op = "keep policy set"
	path := h.setFile(s.Digest())
	now := time.Now()
	if err := os.Chtimes(path, now, now); err == nil && hasPrefix(path, keptPrefix) { // in force again
		return nil
	}
	b, err := json.Marshal(kept{keptVersion, s.Schema(), s.Texts()})
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return durable.Fault(op, err)
	}
	if err := durable.WriteFile(path, b, 0o600); err != nil {
		return durable.Fault(op, err)
	}
	return pruneSets(filepath.Dir(path), archiveSets, archiveBytes)
}

// hasPrefix reports whether a file begins so.
func hasPrefix(path, prefix string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, len(prefix))
	_, err = io.ReadFull(f, b)
	return err == nil && string(b) == prefix
}

// pruneSets removes the oldest sets beyond the bounds. The newest stays.
func pruneSets(dir string, sets int, size int64) error {
	kept, err := keptSets(dir)
	if err != nil {
		return err
	}
	var errs []error
	for n, i := range kept {
		size -= i.Size()
		if n > 0 && (n >= sets || size < 0) {
			errs = append(errs, os.Remove(filepath.Join(dir, i.Name())))
		}
	}
	return durable.Fault("remove old policy sets", errors.Join(errs...))
}

// keptSets returns the files of kept sets, newest first.
func keptSets(dir string) ([]fs.FileInfo, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, durable.Fault("list policy sets", err)
	}
	var kept []fs.FileInfo
	for _, e := range entries {
		if i, err := e.Info(); err == nil && i.Mode().IsRegular() && strings.HasSuffix(i.Name(), ".json") {
			kept = append(kept, i)
		}
	}
	slices.SortFunc(kept, func(a, b fs.FileInfo) int {
		return cmp.Or(b.ModTime().Compare(a.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	return kept, nil
}

// listPolicySets lists the kept sets, and the one in force first even where it couldn't be kept.
func (h *Hub) listPolicySets(context.Context, hub.Caller, hub.None) (none hub.Page[hub.KeptPolicySet], err error) {
	now := h.k.PolicySet().Digest().String()
	out := []hub.KeptPolicySet{{Digest: now, InForce: true}}
	kept, err := keptSets(filepath.Dir(h.setFile(canon.Digest{})))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return none, err
	}
	for _, i := range kept {
		since, digest := i.ModTime().UTC(), "sha256:"+strings.TrimSuffix(i.Name(), ".json")
		if digest == now {
			out[0].Since = &since
		} else if _, err := canon.ParseDigest(digest); err == nil {
			out = append(out, hub.KeptPolicySet{Digest: digest, Since: &since})
		}
	}
	return hub.Page[hub.KeptPolicySet]{Items: out}, nil
}

func (h *Hub) getPolicySet(ctx context.Context, c hub.Caller, digest string) (none hub.KeptPolicySet, err error) {
	d, err := canon.ParseDigest(digest)
	if err != nil {
		return none, fault.New(fault.Usage, "invalid_input", "get policy set", err)
	}
	_, done, err := h.policyWork(ctx, c, testTime) // a kept set is compiled before it's believed
	if err != nil {
		return none, err
	}
	defer done()
	set := h.setOf(d)
	if set == nil {
		return none, noSuch("policy set", digest)
	}
	v := hub.KeptPolicySet{Digest: digest, InForce: set == h.k.PolicySet(), Files: set.Texts()}
	if i, err := os.Stat(h.setFile(d)); err == nil {
		since := i.ModTime().UTC()
		v.Since = &since
	}
	return v, nil
}

// setOf returns the set that made a decision: the one in force, the built-in one, or a kept
// one; nil if it is gone.
func (h *Hub) setOf(d canon.Digest) *policy.Set {
	for _, s := range []*policy.Set{h.k.PolicySet(), policy.Default()} {
		if s.Digest() == d {
			return s
		}
	}
	b, err := durable.ReadPrivate(h.setFile(d), archiveEach)
	if err != nil {
		return nil
	}
	var k kept
	if strings.HasPrefix(string(b), keptPrefix) {
		if err = json.Unmarshal(b, &k); err == nil && k.Version != keptVersion {
			err = fmt.Errorf("version %d, want %d", k.Version, keptVersion)
		}
	} else {
		err = json.Unmarshal(b, &k.Policies)
	}
	if err != nil {
		h.cfg.Log.Warn("read policy set", "digest", d, "error", err)
		return nil
	}
	s, err := policy.Restore(k.Policies, k.Schema, d)
	if err != nil {
		h.cfg.Log.Warn("read policy set", "digest", d, "error", err)
		return nil
	}
	return s
}
