package apiclient

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

// Options configures a Client.
type Options struct {
	Config      *rest.Config // see LoadConfig; not modified
	Certificate *Certificate // client certificate; nil: that of Config
	UserAgent   string
	QPS         int // requests per second, in addition to Burst; 0: no limit
	Burst       int
	OnRequest   func(Request) // called for each finished request, from many goroutines; may be nil
}

// Client talks to one server. Its errors are those of apierrors if the server has answered.
type Client struct {
	opt        Options
	groups     map[schema.GroupVersion]rest.Interface
	parameters runtime.ParameterCodec
	dialer     *connrotation.Dialer
	http       *http.Client
}

const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	requestTimeout   = 30 * time.Second // of everything but watches
)

// New returns a client. It does not connect yet.
func New(o Options) (*Client, error) {
	c := &Client{opt: o, groups: map[schema.GroupVersion]rest.Interface{}}
	codecs, parameters := wire()
	c.parameters = parameters
	config := rest.CopyConfig(o.Config)
	config.UserAgent = o.UserAgent
	config.QPS, config.Burst = float32(o.QPS), o.Burst
	if o.QPS == 0 {
		config.QPS = -1
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.NegotiatedSerializer = codecs.WithoutConversion()
	c.dialer = connrotation.NewDialer((&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext)
	transport, err := c.transport(config)
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{Transport: observed(transport, o.OnRequest)}
	for gv := range groupsInUse() {
		one := rest.CopyConfig(config)
		one.GroupVersion, one.APIPath = &gv, "/apis"
		if gv.Group == "" {
			one.APIPath = "/api"
		}
		if gv == NetworkPolicyAddresses.Group { // its types have no protobuf encoding
			one.ContentType, one.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
		}
		if c.groups[gv], err = rest.RESTClientForConfigAndClient(one, c.http); err != nil {
			return nil, fmt.Errorf("client of %s: %w", gv, err)
		}
	}
	return c, nil
}

func groupsInUse() map[schema.GroupVersion]bool {
	out := map[schema.GroupVersion]bool{}
	for _, r := range []Resource{
		Pods, EndpointSlices, NetworkPolicies, Leases, RuntimeClasses, CertificateSigningRequests, TokenReviews,
		SubjectAccessReviews, NetworkPolicyAddresses, CSINodes,
	} {
		out[r.Group] = true
	}
	return out
}

// transport presents the certificate that is current at the time. A renewed certificate does not
// require a restart.
func (c *Client) transport(config *rest.Config) (http.RoundTripper, error) {
	own := rest.CopyConfig(config)
	if c.opt.Certificate != nil {
		own.CertFile, own.KeyFile, own.CertData, own.KeyData = "", "", nil, nil
	}
	t, err := rest.TLSConfigFor(own)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", config.Host, err)
	}
	if t == nil {
		t = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t.NextProtos = []string{"h2", "http/1.1"}
	if cert := c.opt.Certificate; cert != nil {
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert.Current() }
		cert.onChange(c.dialer.CloseAll) // open connections use the old one
	}
	rt, err := rest.HTTPWrappersForConfig(own, utilnet.SetTransportDefaults(&http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: c.dialer.DialContext, TLSClientConfig: t,
		TLSHandshakeTimeout: handshakeTimeout, MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second,
	}))
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", config.Host, err)
	}
	return rt, nil
}

// Unthrottled returns a client of the same server with its own connection and without a rate limit.
func (c *Client) Unthrottled() (*Client, error) {
	o := c.opt
	o.QPS = 0
	return New(o)
}

// Close closes the connections.
func (c *Client) Close() { c.dialer.CloseAll() }

// Server is the address of the server, https://host:port.
func (c *Client) Server() string { return c.opt.Config.Host }

// Get reads an object.
func (c *Client) Get(ctx context.Context, r Resource, namespace, name string, into runtime.Object) error {
	return c.groups[r.Group].Get().NamespaceIfScoped(namespace, namespace != "").Resource(r.Name).Name(name).
		Timeout(requestTimeout).Do(ctx).Into(into)
}

// Create creates an object, or a subresource of the named object. into may be nil.
func (c *Client) Create(
	ctx context.Context,
	r Resource,
	namespace string,
	obj, into runtime.Object,
	nameAndSub ...string,
) error {
	req := c.groups[r.Group].Post().NamespaceIfScoped(namespace, namespace != "").Resource(r.Name)
	if len(nameAndSub) > 0 {
		req = req.Name(nameAndSub[0]).SubResource(nameAndSub[1:]...)
	}
	return finish(req.Body(obj).Timeout(requestTimeout).Do(ctx), into)
}

// Patch patches an object. into may be nil.
func (c *Client) Patch(
	ctx context.Context,
	r Resource,
	namespace, name string,
	kind types.PatchType,
	patch []byte,
	into runtime.Object,
	sub ...string,
) error {
	return finish(
		c.groups[r.Group].Patch(kind).
			NamespaceIfScoped(namespace, namespace != "").
			Resource(r.Name).
			Name(name).
			SubResource(sub...).
			Body(patch).
			Timeout(requestTimeout).
			Do(ctx),
		into,
	)
}

// JSONMap returns the JSON form of a value as a map, for patches.
func JSONMap(v any) (fields map[string]any, err error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return fields, json.Unmarshal(text, &fields)
}

// Delete deletes an object. See DeleteNow for options.
func (c *Client) Delete(ctx context.Context, r Resource, namespace, name string, o metav1.DeleteOptions) error {
	o.TypeMeta = metav1.TypeMeta{}
	return c.groups[r.Group].Delete().NamespaceIfScoped(namespace, namespace != "").Resource(r.Name).Name(name).
		Body(&o).Timeout(requestTimeout).Do(ctx).Error()
}

// DeleteNow returns options that delete the object with that UID without a grace period. Another
// object of the same name is left alone.
func DeleteNow(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &uid}}
}

func finish(r rest.Result, into runtime.Object) error {
	if into == nil {
		return r.Error()
	}
	return r.Into(into)
}
