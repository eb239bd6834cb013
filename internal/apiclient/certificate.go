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

// CertificateOptions configures a Certificate.
type CertificateOptions struct {
	Dir             string // directory of the files, as the kubelet uses it
	Name            string // kubelet-client or kubelet-server
	Request         CertificateRequest
	RenewalClient   func() (*Client, error) // client for renewals while the certificate is valid; nil: never renewed
	BootstrapClient func() (*Client, error) // client for requests without a valid certificate; nil: none
	Hint            string                  // what the user can do if no request is possible, for errors
	Log             *slog.Logger
	Now             func() time.Time // default time.Now
	OnIssued        func()           // called for every issued certificate; may be nil
	OnError         func()           // called for every failed request; may be nil
	// OnRotated receives the age of a certificate that was replaced; may be nil.
	OnRotated func(time.Duration)
}

// Certificate is a certificate that the agent requests and renews. It is safe for concurrent use.
//
//	none, or expired ──BootstrapClient──► valid ──at 70 to 90 % of its lifetime, RenewalClient──► valid
//	      ▲                                 └──expired, renewal impossible──┐
//	      └─────────────────────────────────────────────────────────────────┘
type Certificate struct {
	opt CertificateOptions

	mu      sync.Mutex
	current *tls.Certificate // its Leaf is set
	renewAt time.Time
	changed []func()
	lastErr error // error of the last request; nil: success
}

// OpenCertificate loads the stored certificate. Run requests a new one if it is missing, damaged or
// belongs to another node. The warning explains why a stored one is not used.
func OpenCertificate(o CertificateOptions) (c *Certificate, warning error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c = &Certificate{opt: o}
	stored, err := c.load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case err != nil:
		return c, err
	}
	c.set(stored)
	return c, nil
}

// Path is the file that contains the newest certificate and its key.
func (c *Certificate) Path() string { return filepath.Join(c.opt.Dir, currentFileName(c.opt.Name)) }

func currentFileName(name string) string { return name + "-current.pem" }

// Valid reports whether there is a certificate that has not expired.
func (c *Certificate) Valid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current != nil && c.opt.Now().Before(c.current.Leaf.NotAfter)
}

// Expires is the expiration time of the certificate, or zero if there is none. c may be nil.
func (c *Certificate) Expires() time.Time {
	if c == nil {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return time.Time{}
	}
	return c.current.Leaf.NotAfter
}

// Current returns the certificate to present, or an error if none has been issued yet.
func (c *Certificate) Current() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return nil, fmt.Errorf("certificate %s: the server has not issued one yet", c.opt.Name)
	}
	return c.current, nil
}

// onChange registers f to be called for every new certificate.
func (c *Certificate) onChange(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, f)
}

// set starts to use a certificate.
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
	minRequestInterval = time.Second
	maxRequestInterval = 30 * time.Second
)

// errNoCertificate reports that the requesting node has no certificate itself yet.
var errNoCertificate = errors.New("the node has no client certificate yet")

// Run requests a certificate when there is no valid one, and renews it in time, until ctx ends.
func (c *Certificate) Run(ctx context.Context) error {
	wait := minRequestInterval
	for ctx.Err() == nil {
		due, who := c.due()
		if until := due.Sub(c.opt.Now()); until > 0 {
			sleep(ctx, min(until, time.Hour)) // notice changes of the clock
			continue
		}
		err := c.obtain(ctx, who)
		c.mu.Lock()
		c.lastErr = err
		c.mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errNoCertificate):
			sleep(ctx, minRequestInterval)
		case err != nil:
			if c.opt.OnError != nil {
				c.opt.OnError()
			}
			c.opt.Log.Warn("certificate request failed", "name", c.opt.Name, "err", err)
			sleep(ctx, wait)
			wait = min(2*wait, maxRequestInterval)
		default:
			wait = minRequestInterval
		}
	}
	return nil
}

// due returns when to request the next certificate, and with which client.
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

// obtain requests a certificate, stores it and starts to use it.
func (c *Certificate) obtain(ctx context.Context, who func() (*Client, error)) error {
	if who == nil {
		state := "no certificate"
		if at := c.Expires(); !at.IsZero() {
			state = "certificate expired at " + at.Format(time.RFC3339)
		}
		return fmt.Errorf("%s, and a new one cannot be requested: %s", state, c.opt.Hint)
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
		if errors.Is(err, errDenied) {
			_ = os.Remove(c.keyPath()) // the next request uses a new key
		}
		return err
	}
	cert, err := c.store(key, chain)
	if err != nil {
		return err
	}
	if previous, err := c.Current(); err == nil && c.opt.OnRotated != nil {
		c.opt.OnRotated(c.opt.Now().Sub(previous.Leaf.NotBefore))
	}
	c.set(cert)
	_ = os.Remove(c.keyPath()) // now stored with the certificate
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

// CertificateFilePatterns returns glob patterns of all files with certificates and keys of a node,
// including files that a crash left or that were moved aside by Rejoin.
func CertificateFilePatterns() []string {
	out := certificateFiles()
	for _, pattern := range certificateFiles() {
		out = append(out, pattern+renamedSuffix)
	}
	return out
}

// certificateFiles are the patterns of the files of the current server.
func certificateFiles() (out []string) {
	for _, name := range []string{clientName, serverName} {
		out = append(out, name+"-*.pem", name+"-*.pem.new", name+"-*.pem.tmp", name+".key.tmp", name+".key.tmp.new")
	}
	return out
}

func (c *Certificate) keyPath() string { return filepath.Join(c.opt.Dir, c.opt.Name+".key.tmp") }

// pendingKey returns the key of a request that may be pending, also after a restart. The approval
// may be manual and take long.
func (c *Certificate) pendingKey() (*ecdsa.PrivateKey, error) {
	if text, err := os.ReadFile(c.keyPath()); err == nil {
		if key, err := parseKey(text); err == nil {
			return key, nil
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	text, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create certificate directory: %w", err)
	}
	return key, writeFile(c.keyPath(), text)
}

// load reads the newest certificate and verifies that it belongs to this node.
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
		return nil, fmt.Errorf("certificate %s belongs to %s, and this node is %s", c.Path(), is, want)
	}
	for _, ip := range c.opt.Request.IPs {
		if err := cert.Leaf.VerifyHostname(ip.String()); err != nil {
			return nil, fmt.Errorf("certificate %s: %w", c.Path(), err)
		}
	}
	return &cert, nil
}

// store writes a certificate with its key into a new file, and then updates the link atomically.
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
	_ = os.Remove(tmp) // of an earlier attempt
	if err := os.Symlink(name, tmp); err != nil {
		return nil, fmt.Errorf("store certificate: %w", err)
	}
	if err := os.Rename(tmp, c.Path()); err != nil {
		return nil, fmt.Errorf("store certificate: %w", err)
	}
	if before != "" && before != name && filepath.Base(before) == before {
		_ = os.Remove(filepath.Join(c.opt.Dir, before)) // not in use any more
	}
	return cert, nil
}

// writeFile writes a file atomically and durably with mode 0600. A node that loses its certificate
// may not be able to request another one.
func writeFile(path string, text []byte) (err error) {
	tmp := path + ".new"
	defer func() {
		if err != nil {
			_ = os.Remove(tmp) // possibly incomplete
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	_ = os.Remove(tmp) // of an earlier attempt
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

// Key usages of the client and the serving certificate of a node.
var (
	clientUsages = []certsv1.KeyUsage{certsv1.UsageDigitalSignature, certsv1.UsageClientAuth}
	serverUsages = []certsv1.KeyUsage{certsv1.UsageDigitalSignature, certsv1.UsageServerAuth}
)
