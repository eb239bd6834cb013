package apiclient

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	certsv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// CertificateOptions say which certificate is wanted, where it is kept and who
// may be asked for it.
type CertificateOptions struct {
	Dir             string // of the files, as the kubelet has them
	Name            string // kubelet-client or kubelet-server
	Request         CertificateRequest
	RenewalClient   func() (*Client, error) // who asks for the next while this one is good; nil: it is never renewed
	BootstrapClient func() (*Client, error) // who asks when there is none that is good; nil: nobody can
	Hint            string                  // what a user can do when nobody can, for messages
	Log             *slog.Logger
	Now             func() time.Time // default time.Now
	OnIssued        func()           // a first or another certificate is there; may be nil
}

// Certificate is a certificate that the agent has asked for, and keeps good.
//
//	none, or expired ──Begin asks──► good ──at 70 to 90 % of its time, Renew asks──► good
//	      ▲                            └──expired while nobody could renew it──┐
//	      └────────────────────────────────────────────────────────────────────┘
type Certificate struct {
	opt CertificateOptions

	mu      sync.Mutex
	current *tls.Certificate // its Leaf is set
	renewAt time.Time
	changed []func()
	lastErr error // of the last try to get one; nil: it went well
}

// OpenCertificate reads what is kept. One that is not there, damaged or somebody
// else's is asked for by Run; the warning says so.
func OpenCertificate(o CertificateOptions) (c *Certificate, warning error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c = &Certificate{opt: o}
	kept, err := c.load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case err != nil:
		return c, err
	}
	c.set(kept)
	return c, nil
}

// Path is the file that always has the newest certificate and its key.
func (c *Certificate) Path() string { return filepath.Join(c.opt.Dir, currentName(c.opt.Name)) }

func currentName(name string) string { return name + "-current.pem" }

// Valid reports whether there is a certificate that has not expired.
func (c *Certificate) Valid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current != nil && c.opt.Now().Before(c.current.Leaf.NotAfter)
}

// Expires is when the certificate expires; zero: there is none.
func (c *Certificate) Expires() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return time.Time{}
	}
	return c.current.Leaf.NotAfter
}

// Current is the certificate to show. The error says that there is none yet.
func (c *Certificate) Current() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return nil, fmt.Errorf("certificate %s: the server has not issued one yet", c.opt.Name)
	}
	return c.current, nil
}

// onChange has f called whenever another certificate has come.
func (c *Certificate) onChange(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, f)
}

// set takes a certificate into use.
func (c *Certificate) set(cert *tls.Certificate) {
	life := cert.Leaf.NotAfter.Sub(cert.Leaf.NotBefore)
	c.mu.Lock()
	c.current = cert
	c.renewAt = cert.Leaf.NotBefore.Add(life*7/10 + time.Duration(mathrand.Int64N(int64(life/5)+1)))
	changed := c.changed
	c.mu.Unlock()
	for _, f := range changed {
		f()
	}
}

const (
	askAgainFirst = time.Second
	askAgainLast  = 30 * time.Second
)

// errNoCertificate says that who would ask is not known to the server itself yet.
var errNoCertificate = errors.New("the node has no certificate of its own yet")

// Run asks for the certificate when there is none that is good, and for the next
// in time, until ctx ends.
func (c *Certificate) Run(ctx context.Context) error {
	wait := askAgainFirst
	for ctx.Err() == nil {
		due, who := c.due()
		if until := due.Sub(c.opt.Now()); until > 0 {
			sleep(ctx, min(until, time.Hour)) // a clock that is set is noticed
			continue
		}
		err := c.obtain(ctx, who)
		c.mu.Lock()
		c.lastErr = err
		c.mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errNoCertificate):
			sleep(ctx, askAgainFirst)
		case err != nil:
			c.opt.Log.Warn("certificate "+c.opt.Name, "err", err)
			sleep(ctx, wait)
			wait = min(2*wait, askAgainLast)
		default:
			wait = askAgainFirst
		}
	}
	return nil
}

// due says when the next certificate is to be asked for, and whom.
func (c *Certificate) due() (time.Time, func() (*Client, error)) {
	now := c.opt.Now()
	if !c.Valid() {
		return now, c.opt.BootstrapClient
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opt.RenewalClient == nil {
		return c.current.Leaf.NotAfter, c.opt.BootstrapClient
	}
	return c.renewAt, c.opt.RenewalClient
}

// obtain asks for a certificate, keeps it and takes it into use.
func (c *Certificate) obtain(ctx context.Context, who func() (*Client, error)) error {
	if who == nil {
		state := "there is none"
		if at := c.Expires(); !at.IsZero() {
			state = "it expired at " + at.Format(time.RFC3339)
		}
		return fmt.Errorf("%s and nobody can ask for another: %s", state, c.opt.Hint)
	}
	client, err := who()
	if err != nil {
		return err
	}
	key, err := c.pendingKey()
	if err != nil {
		return err
	}
	chain, err := c.opt.Request.request(ctx, client, key)
	if apierrors.IsUnauthorized(err) && !c.Valid() {
		return fmt.Errorf("%w: %s", err, c.opt.Hint)
	}
	if err != nil {
		if errors.Is(err, errRefused) {
			_ = os.Remove(c.keyPath()) // the next request is another
		}
		return err
	}
	cert, err := c.store(key, chain)
	if err != nil {
		return err
	}
	c.set(cert)
	_ = os.Remove(c.keyPath()) // it is kept beside the certificate now
	c.opt.Log.Info("certificate issued", "name", c.opt.Name, "expires", cert.Leaf.NotAfter)
	if c.opt.OnIssued != nil {
		c.opt.OnIssued()
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// CertificateFilePatterns are the patterns of all files that a node's certificates are kept in,
// with their keys and what a crash may leave, and of those that were put aside.
func CertificateFilePatterns() []string {
	out := certificateFiles()
	for _, pattern := range certificateFiles() {
		out = append(out, pattern+asideSuffix)
	}
	return out
}

// certificateFiles are those of the server that the node is of now.
func certificateFiles() (out []string) {
	for _, name := range []string{clientName, serverName} {
		out = append(out, name+"-*.pem", name+"-*.pem.new", name+"-*.pem.tmp", name+".key.tmp", name+".key.tmp.new")
	}
	return out
}

func (c *Certificate) keyPath() string { return filepath.Join(c.opt.Dir, c.opt.Name+".key.tmp") }

// pendingKey is the key of a request that may be under way, also over a restart:
// it may take somebody's hand to approve it.
func (c *Certificate) pendingKey() (*ecdsa.PrivateKey, error) {
	if text, err := os.ReadFile(c.keyPath()); err == nil {
		if key, err := parseKey(text); err == nil {
			return key, nil
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	text, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of certificates: %w", err)
	}
	return key, writeFile(c.keyPath(), text)
}

// load reads the newest certificate and checks whose it is.
func (c *Certificate) load() (*tls.Certificate, error) {
	text, err := os.ReadFile(c.Path())
	if err != nil {
		return nil, err
	}
	return c.parse(text)
}

func (c *Certificate) parse(text []byte) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", c.Path(), err)
	}
	if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", c.Path(), err)
	}
	if is, want := cert.Leaf.Subject.CommonName, c.opt.Request.Subject.CommonName; is != want {
		return nil, fmt.Errorf("certificate %s is that of %s: this node is %s", c.Path(), is, want)
	}
	for _, ip := range c.opt.Request.IPs {
		if err := cert.Leaf.VerifyHostname(ip.String()); err != nil {
			return nil, fmt.Errorf("certificate %s: %w", c.Path(), err)
		}
	}
	return &cert, nil
}

// store writes a certificate with its key into a file of its own, and then moves
// the link to it: whoever reads by the link never finds half of it.
func (c *Certificate) store(key *ecdsa.PrivateKey, chain []byte) (*tls.Certificate, error) {
	keyText, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	text := append(append(bytes.TrimSpace(chain), '\n'), keyText...)
	cert, err := c.parse(text)
	if err != nil {
		return nil, err
	}
	name := c.opt.Name + "-" + c.opt.Now().UTC().Format("2006-01-02-15-04-05") + ".pem"
	if err := writeFile(filepath.Join(c.opt.Dir, name), text); err != nil {
		return nil, err
	}
	before, _ := os.Readlink(c.Path())
	tmp := c.Path() + ".tmp"
	_ = os.Remove(tmp) // of an earlier try
	if err := os.Symlink(name, tmp); err != nil {
		return nil, fmt.Errorf("keep certificate: %w", err)
	}
	if err := os.Rename(tmp, c.Path()); err != nil {
		return nil, fmt.Errorf("keep certificate: %w", err)
	}
	if before != "" && before != name && filepath.Base(before) == before {
		_ = os.Remove(filepath.Join(c.opt.Dir, before)) // nobody shows it any more
	}
	return cert, nil
}

// writeFile writes a file that is whole or not there, for its owner alone, and on
// the disk: a node that has lost its certificate may have no other way in.
func writeFile(path string, text []byte) (err error) {
	tmp := path + ".new"
	defer func() {
		if err != nil {
			_ = os.Remove(tmp) // half of it, or not even that
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	_ = os.Remove(tmp) // of an earlier try
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// The usages of the two certificates of a node.
var (
	clientUsages = []certsv1.KeyUsage{certsv1.UsageDigitalSignature, certsv1.UsageClientAuth}
	serverUsages = []certsv1.KeyUsage{certsv1.UsageDigitalSignature, certsv1.UsageServerAuth}
)
