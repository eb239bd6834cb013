package tokens

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Format of bootstrap tokens in Kubernetes and kubeadm: a secret bootstrap-token-ID of a special
// type in kube-system. The token is "ID.SECRET".
const (
	BootstrapNamespace  = metav1.NamespaceSystem
	BootstrapNamePrefix = "bootstrap-token-"
	BootstrapUserPrefix = "system:bootstrap:"
	BootstrapGroup      = "system:bootstrappers"
	NodeBootstrapGroup  = "system:bootstrappers:kubeadm:default-node-token"

	dataID          = "token-id"
	dataSecret      = "token-secret"
	dataExpiration  = "expiration"
	dataDescription = "description"
	dataGroups      = "auth-extra-groups"
	dataUsageAuth   = "usage-bootstrap-authentication"
	dataUsageSign   = "usage-bootstrap-signing"
)

// Annotations of berth on the secret of a bootstrap token.
const (
	// SingleUseAnnotation with the value "true" limits the token to one node identity.
	SingleUseAnnotation = "berth.dev/single-use"
	// ClaimedByAnnotation holds the identity for which a single-use token was used.
	ClaimedByAnnotation = "berth.dev/claimed-by"
	// ForNodeKey is an annotation with the only node name that the token can be used for. The operator lets it take
	// the name of an existing node. A user with the token has the same key in its extra fields, which
	// certificate signing requests record.
	ForNodeKey = "berth.dev/for-node"
)

var (
	bootstrapTokenPattern = regexp.MustCompile(`\A([a-z0-9]{6})\.([a-z0-9]{16})\z`)
	bootstrapGroupPattern = regexp.MustCompile(`\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z`)
)

// BootstrapToken is a bootstrap token.
type BootstrapToken struct {
	ID, Secret  string
	Description string
	Expires     time.Time // zero: no expiration
	Groups      []string  // in addition to system:bootstrappers
	SingleUse   bool
	ForNode     string // the only node name it can be used for; "": any name that no node has
}

// NewBootstrapToken returns a random token: 6 and 16 characters of [a-z0-9].
func NewBootstrapToken() (BootstrapToken, error) {
	id, err := random(6)
	if err != nil {
		return BootstrapToken{}, err
	}
	secret, err := random(16)
	return BootstrapToken{ID: id, Secret: secret, Groups: []string{NodeBootstrapGroup}}, err
}

func random(n int) (string, error) {
	const alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"
	out := make([]byte, n)
	for i := range out {
		k, err := rand.Int(rand.Reader, big.NewInt(int64(len(alphabet))))
		if err != nil {
			return "", fmt.Errorf("generate bootstrap token: %w", err)
		}
		out[i] = alphabet[k.Int64()]
	}
	return string(out), nil
}

// ParseBootstrapToken splits "ID.SECRET". ok is false for any other format.
func ParseBootstrapToken(token string) (id, secret string, ok bool) {
	m := bootstrapTokenPattern.FindStringSubmatch(token)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

// Token returns the token as given to a node.
func (b BootstrapToken) Token() string { return b.ID + "." + b.Secret }

// ToSecret returns the secret to store.
func (b BootstrapToken) ToSecret() *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: BootstrapNamespace, Name: BootstrapNamePrefix + b.ID},
		Type:       corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			dataID: []byte(b.ID), dataSecret: []byte(b.Secret), dataUsageAuth: []byte("true"),
			dataUsageSign: []byte("true"),
		},
	}
	if b.Description != "" {
		s.Data[dataDescription] = []byte(b.Description)
	}
	if !b.Expires.IsZero() {
		s.Data[dataExpiration] = []byte(b.Expires.UTC().Format(time.RFC3339))
	}
	if len(b.Groups) > 0 {
		s.Data[dataGroups] = []byte(strings.Join(b.Groups, ","))
	}
	s.Annotations = map[string]string{}
	if b.SingleUse {
		s.Annotations[SingleUseAnnotation] = "true"
	}
	if b.ForNode != "" {
		s.Annotations[ForNodeKey] = b.ForNode
	}
	return s
}

// SecretClient is the part of the clientset's Secrets(BootstrapNamespace) that bootstrap tokens
// need.
type SecretClient interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error)
	List(ctx context.Context, o metav1.ListOptions) (*corev1.SecretList, error)
	Update(ctx context.Context, s *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// BootstrapAuthenticator authenticates bootstrap tokens. It implements authenticator.Token.
type BootstrapAuthenticator struct {
	// Lookup returns the secret of a token by its ID, or a NotFound error. It is called for any token that a client
	// sends, so it must not read from the store.
	Lookup func(id string) (*corev1.Secret, error)
	// Secrets reads and writes the secrets of authenticated clients.
	Secrets SecretClient
	Now     func() time.Time // nil means time.Now
}

// AuthenticateToken returns false without an error for anything that is not a valid bootstrap
// token. A client cannot distinguish unknown, expired and unusable tokens.
func (b *BootstrapAuthenticator) AuthenticateToken(_ context.Context,
	token string) (*authenticator.Response, bool, error) {
	id, secret, ok := ParseBootstrapToken(token)
	if !ok {
		return nil, false, nil
	}
	s, err := b.Lookup(id)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get bootstrap token %s: %w", id, err)
	}
	if !b.usable(s, id) || subtle.ConstantTimeCompare(s.Data[dataSecret], []byte(secret)) != 1 {
		return nil, false, nil
	}
	groups, ok := groupsOf(s)
	if !ok {
		return nil, false, nil
	}
	u := &user.DefaultInfo{Name: BootstrapUserPrefix + id, Groups: groups}
	if node := s.Annotations[ForNodeKey]; node != "" {
		u.Extra = map[string][]string{ForNodeKey: {node}}
	}
	return &authenticator.Response{User: u}, true, nil
}

func (b *BootstrapAuthenticator) usable(s *corev1.Secret, id string) bool {
	return s.DeletionTimestamp == nil && s.Type == corev1.SecretTypeBootstrapToken && string(s.Data[dataID]) == id &&
		len(s.Data[dataSecret]) > 0 && string(s.Data[dataUsageAuth]) == "true" && !expired(s, nowOf(b.Now))
}

// expired reports whether the token has expired. An invalid timestamp counts as expired.
func expired(s *corev1.Secret, now time.Time) bool {
	at, set := s.Data[dataExpiration]
	if !set || len(at) == 0 {
		return false
	}
	t, err := time.Parse(time.RFC3339, string(at))
	return err != nil || !now.Before(t)
}

func groupsOf(s *corev1.Secret) ([]string, bool) {
	groups := []string{BootstrapGroup}
	if extra := string(s.Data[dataGroups]); extra != "" {
		for g := range strings.SplitSeq(extra, ",") {
			if !bootstrapGroupPattern.MatchString(g) {
				return nil, false
			}
			groups = append(groups, g)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups), true
}

// Claim uses a single-use token for an identity (a node's name and key). Only the first identity
// succeeds, and it may claim again after a lost response. Other tokens can be claimed any number of
// times and are not changed.
func (b *BootstrapAuthenticator) Claim(ctx context.Context, id, identity string, dryRun bool) error {
	for {
		s, err := b.Secrets.Get(ctx, BootstrapNamePrefix+id, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get bootstrap token %s: %w", id, err)
		}
		claimedBy := s.Annotations[ClaimedByAnnotation]
		switch {
		case s.Annotations[SingleUseAnnotation] != "true" || claimedBy == identity:
			return nil
		case claimedBy != "":
			return fmt.Errorf("single-use bootstrap token %s has already been used: create another one with "+
				"\"berth-control "+
				"token create\"", id)
		case dryRun:
			return nil
		}
		s = s.DeepCopy()
		s.Annotations[ClaimedByAnnotation] = identity
		_, err = b.Secrets.Update(ctx, s, metav1.UpdateOptions{})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("claim bootstrap token %s: %w", id, err)
		}
	}
}

// Retire limits the validity of a used single-use token to the given time, because its node has its
// certificate and only needs time to fetch it.
func (b *BootstrapAuthenticator) Retire(ctx context.Context, id string, until time.Time) error {
	for {
		s, err := b.Secrets.Get(ctx, BootstrapNamePrefix+id, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("get bootstrap token %s: %w", id, err)
		}
		if s.Annotations[SingleUseAnnotation] != "true" || expired(s, until) {
			return nil
		}
		s = s.DeepCopy()
		s.Data[dataExpiration] = []byte(until.UTC().Format(time.RFC3339))
		_, err = b.Secrets.Update(ctx, s, metav1.UpdateOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("retire bootstrap token %s: %w", id, err)
		}
	}
}

func nowOf(now func() time.Time) time.Time {
	if now != nil {
		return now()
	}
	return time.Now()
}
