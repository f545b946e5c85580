package kernel

import (
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
)

// Act is an administrative act as its surface reports it. It serialises.
type Act struct {
	Act       string            `json:"act"`       // "policy.reload": lower-case letters, digits, '.', '_' and '-'
	Principal string            `json:"principal"` // the principal that did it
	Subject   string            `json:"subject"`   // the thing that it was done to; "" for the whole
	Detail    map[string]string `json:"detail"`    // no secrets: it is logged for ever
}

// Record signs an administrative act and appends it to the journal. It returns when the entry
// is durable.
func (k *Kernel) Record(ctx context.Context, a Act) (index uint64, err error) {
	if err := k.enter(); err != nil {
		return 0, err
	}
	defer k.calls.Done()
	return k.record(ctx, a)
}

// record is Record for a call, which is counted already.
func (k *Kernel) record(ctx context.Context, a Act) (index uint64, err error) {
	s := k.state
	e, err := receipt.ActEntry(s.att(), receipt.Act{
		Version: receipt.ActVersion, Act: a.Act, Principal: a.Principal, Subject: a.Subject, Detail: a.Detail,
		Seq: s.journal.Size(), Time: stamp(time.Now()), BootID: s.boot,
	})
	if err != nil {
		return 0, err
	}
	if index, err = s.append(ctx, e, false, nil, nil); err == nil {
		who, _, _ := strings.Cut(a.Principal, " ") // the token that it used follows
		k.logged(who, e)
	}
	return index, err
}

// OnLogged calls f for each further entry of the journal once it's durable, with the principal
// of its call or act and its size in bytes. A new f replaces the old one.
func (k *Kernel) OnLogged(f func(principal string, bytes int)) { k.told.Store(&f) }

func (k *Kernel) logged(principal string, e *receipt.Entry) {
	if f := k.told.Load(); f != nil {
		(*f)(principal, len(e.Leaf())+len(e.Content()))
	}
}

// StateDir returns the state directory.
func (k *Kernel) StateDir() string { return k.cfg.StateDir }

// Trust returns the keys that a verifier of this kernel's receipts must believe.
func (k *Kernel) Trust() *receipt.Trust { return k.state.trust() }

// look makes the journal see other processes' entries, for a reader who asks for size entries.
// A process that is stuck in a write doesn't block readers: they get the known entries.
func (k *Kernel) look(ctx context.Context, size uint64) error {
	if k.state.journal.Size() >= size {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, readerPatience)
	defer cancel()
	err := k.state.journal.Refresh(short)
	if kind := fault.KindOf(err); (kind == fault.Busy || kind == fault.Timeout) && ctx.Err() == nil {
		return nil
	}
	return err
}

const (
	readerPatience = time.Second
	wholeJournal   = ^uint64(0)
)

// Receipt returns the bundle of an entry, proved under the newest checkpoint.
func (k *Kernel) Receipt(ctx context.Context, index uint64) ([]byte, error) {
	if err := k.look(ctx, index+1); err != nil {
		return nil, err
	}
	e, err := k.state.logged(ctx, index)
	if err != nil {
		return nil, err
	}
	return k.state.receipt(ctx, index, e)
}

// JournalStatus is the state of the journal. It serialises.
type JournalStatus struct {
	Origin     string   `json:"origin"`
	Size       uint64   `json:"size"`
	Checkpoint string   `json:"checkpoint"` // signed note over all of it; "" if it is empty
	Open       []uint64 `json:"open"`       // intents without a result: calls that run now, in any process
}

// JournalStatus returns the state of the journal.
func (k *Kernel) JournalStatus(ctx context.Context) (JournalStatus, error) {
	if err := k.look(ctx, wholeJournal); err != nil {
		return JournalStatus{}, err
	}
	j := k.state.journal
	note, err := j.Checkpoint(ctx)
	if err != nil {
		return JournalStatus{}, err
	}
	return JournalStatus{Origin: k.state.trust().Origin(), Size: j.Size(), Checkpoint: string(note), Open: j.OpenEntries()}, nil
}

// JournalEntries reads the entries from from up to but not including to, or to the end of the
// log if that is known to come first.
func (k *Kernel) JournalEntries(from, to uint64) iter.Seq2[journal.Record, error] {
	return k.state.journal.Entries(from, min(to, k.state.journal.Size()))
}

// JournalProof proves an entry under the newest checkpoint.
func (k *Kernel) JournalProof(ctx context.Context, index uint64) (journal.Proof, error) {
	if err := k.look(ctx, index+1); err != nil {
		return journal.Proof{}, err
	}
	return k.state.journal.Prove(ctx, index)
}

// JournalConsistency proves that the log extends its state at size old.
func (k *Kernel) JournalConsistency(ctx context.Context, old uint64) (journal.Consistency, error) {
	if err := k.look(ctx, old); err != nil {
		return journal.Consistency{}, err
	}
	return k.state.journal.ProveConsistency(ctx, old)
}

// PublishJournal writes the tiles and the checkpoint of the whole log, for JournalFile. It
// flushes several files, so call it in quiet moments.
func (k *Kernel) PublishJournal(ctx context.Context) error { return k.state.journal.Publish(ctx) }

// JournalFile returns a published file of the log by its C2SP name: "checkpoint" or "tile/…".
// It reads no other file below the journal's directory.
func (k *Kernel) JournalFile(name string) ([]byte, error) {
	if name != "checkpoint" && !strings.HasPrefix(name, "tile/") || !filepath.IsLocal(name) || filepath.ToSlash(filepath.Clean(name)) != name {
		return nil, fault.New(fault.NotFound, "not_found", "read journal file", errors.New("there is no such tile"))
	}
	root, err := os.OpenRoot(k.JournalDir())
	if err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", "read journal file", err)
	}
	defer root.Close()
	b, err := root.ReadFile(filepath.FromSlash(name))
	if err != nil {
		return nil, fault.New(fault.NotFound, "not_found", "read journal file", errors.New("there is no such tile"))
	}
	return b, nil
}

// JournalDir returns the journal's directory, for readers such as receipt.Audit. A write to it
// destroys the log.
func (k *Kernel) JournalDir() string { return filepath.Join(k.cfg.StateDir, "journal") }

// VerifyReceipt verifies a receipt of anyone's with the keys of this journal.
func (k *Kernel) VerifyReceipt(ctx context.Context, b []byte) (v *receipt.Verified, err error) {
	err = k.state.knowing(ctx, func(t *receipt.Trust) (err error) {
		v, err = receipt.Verify(b, t)
		return err
	})
	return v, err
}

// Audit checks the whole journal and everything in it.
func (k *Kernel) Audit() (*receipt.AuditReport, error) {
	return receipt.Audit(k.JournalDir(), k.state.trust())
}
