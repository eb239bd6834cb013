package tokens

import (
	"crypto/sha256"

	"k8s.io/utils/lru"
)

// maxRejected limits the number of remembered tokens.
const maxRejected = 4096

// RejectedTokens remembers service account tokens that were rejected because an object they are bound to does not
// exist in the store. Such a token never becomes valid again, because it contains the object's UID. Without this, each
// request with it would read from the store. Only tokens with a valid signature are remembered, by their hash. It is
// safe for concurrent use.
type RejectedTokens struct {
	errs *lru.Cache // of error, by the SHA-256 of the token
}

// NewRejectedTokens returns an empty memory.
func NewRejectedTokens() *RejectedTokens { return &RejectedTokens{lru.New(maxRejected)} }

// get returns why a token was rejected earlier, or nil.
func (r *RejectedTokens) get(token string) error {
	if r == nil {
		return nil
	}
	stored, _ := r.errs.Get(sha256.Sum256([]byte(token)))
	err, _ := stored.(error)
	return err
}

func (r *RejectedTokens) add(token string, err error) {
	if r != nil {
		r.errs.Add(sha256.Sum256([]byte(token)), err)
	}
}
