package apiclient

import "net/netip"

// Serving is the certificate that the node's own server shows, issued by the
// node's server and renewed in time. Run has to be called for it.
func (id *Identity) Serving(ips []netip.Addr) *Certificate {
	o := &id.opt
	c, warning := OpenCertificate(CertificateOptions{
		Dir: o.CertDir, Name: serverName, Ask: NodeServer(o.NodeName, ips), Log: o.Log, Renew: id.self, Begin: id.self,
		Remedy: "kubectl get csr shows whether it waits for somebody's approval",
	})
	if warning != nil {
		o.Log.Info("another certificate is asked for the node's own server", "reason", warning)
	}
	return c
}
