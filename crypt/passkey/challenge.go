package passkey

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

// ChallengeTime is how long a challenge is good for.
const ChallengeTime = 2 * time.Minute

// Challenges makes challenges and takes each once. A challenge is a random number and its end
// under a MAC of this process, over what it's for, too. So a stranger who asks for many takes no
// room, and another daemon's isn't good. Only those that were used are kept until their end, and
// only holders of a passkey use them.
type Challenges struct {
	key   [32]byte
	began time.Time // with monotonic reading: setting the clock prolongs none

	mu   sync.Mutex
	used map[[16]byte]time.Duration // until when; guarded by mu
}

// maxUsed bounds the challenges that are kept, which is far beyond what people click.
const maxUsed = 1 << 14

// NewChallenges returns Challenges under a key of their own.
func NewChallenges() *Challenges {
	c := &Challenges{began: time.Now(), used: make(map[[16]byte]time.Duration)}
	_, _ = rand.Read(c.key[:])
	return c
}

// New returns a challenge that is good for the same words alone, such as a purpose and a session.
func (c *Challenges) New(words ...string) []byte {
	b := make([]byte, 24, 24+sha256.Size)
	_, _ = rand.Read(b[:16])
	binary.BigEndian.PutUint64(b[16:], uint64(time.Since(c.began)+ChallengeTime))
	return append(b, c.mac(b, words)...)
}

func (c *Challenges) mac(head []byte, words []string) []byte {
	m := hmac.New(sha256.New, c.key[:])
	m.Write(head)
	for _, w := range words {
		m.Write(binary.BigEndian.AppendUint64(nil, uint64(len(w))))
		m.Write([]byte(w))
	}
	return m.Sum(nil)
}

var errChallenge = errors.New("the challenge is too old, used, or for something else")

// Spend takes a challenge. It's called when the signature holds.
func (c *Challenges) Spend(challenge []byte, words ...string) error {
	if len(challenge) != 24+sha256.Size || !hmac.Equal(challenge[24:], c.mac(challenge[:24], words)) {
		return errChallenge
	}
	now, end := time.Since(c.began), time.Duration(binary.BigEndian.Uint64(challenge[16:]))
	id := [16]byte(challenge)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, used := c.used[id]; used || now > end {
		return errChallenge
	}
	if len(c.used) >= maxUsed {
		for i, end := range c.used {
			if now > end {
				delete(c.used, i)
			}
		}
		if len(c.used) >= maxUsed {
			return errors.New("too many challenges are in use")
		}
	}
	c.used[id] = end
	return nil
}
