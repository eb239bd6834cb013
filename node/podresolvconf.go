package node

import "berth/cri/criconfig"

// PodResolvConf reads the resolver configuration that pods inherit from the host.
type PodResolvConf struct {
	File, Fallback HostFile // Fallback is used if File has no name server that pods can reach
}

// SetPaths sets the paths of the files. With an empty file, pods inherit no configuration. An empty
// fallback is not used.
func (p *PodResolvConf) SetPaths(file, fallback string) {
	p.File.Path, p.Fallback.Path = file, fallback
}

// Read returns the current configuration and the file that it was read from. The file is empty if
// pods inherit none.
func (p *PodResolvConf) Read() (r criconfig.ResolvConf, file string, err error) {
	if p.File.Path == "" {
		return r, "", nil
	}
	text, err := p.File.Read()
	if err != nil {
		return r, "", err
	}
	r = criconfig.ParseResolvConf(string(text))
	if p.Fallback.Path == "" || len(r.Nameservers) == 0 || r.ReachableFromPod() {
		return r, p.File.Path, nil
	}
	if text, err := p.Fallback.Read(); err == nil {
		if other := criconfig.ParseResolvConf(string(text)); other.ReachableFromPod() {
			return other, p.Fallback.Path, nil
		}
	}
	return r, p.File.Path, nil
}
