//! `pulsar://host:port` and `pulsar+ssl://host:port`.

use reqwest::Url;

/// Where a broker's binary port is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BrokerAddress {
    /// By TLS.
    pub tls: bool,
    /// Host, in lower case; an IPv6 address without its brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl BrokerAddress {
    /// From an address. The ports are Pulsar's own, 6650 and 6651, where it names none.
    ///
    /// # Errors
    /// Why it is not such an address.
    pub fn parse(text: &str) -> Result<BrokerAddress, String> {
        let expected = || "expected pulsar://host:port or pulsar+ssl://host:port".to_owned();
        let url = Url::parse(text).map_err(|e| format!("{e}; {}", expected()))?;
        let (tls, port) = match url.scheme() {
            "pulsar" => (false, 6650),
            "pulsar+ssl" => (true, 6651),
            _ => return Err(expected()),
        };
        let plain = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        let anonymous = url.username().is_empty() && url.password().is_none();
        let host = url.host_str().filter(|host| !host.is_empty() && plain && anonymous).ok_or_else(expected)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        Ok(BrokerAddress { tls, host, port: url.port().unwrap_or(port) })
    }
}

impl std::fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "pulsar+ssl" } else { "pulsar" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let parse = |text: &str| BrokerAddress::parse(text).map(|address| address.to_string());
        assert_eq!(parse("pulsar://Broker-1:6650").as_deref(), Ok("pulsar://broker-1:6650"));
        assert_eq!(parse("pulsar://b").as_deref(), Ok("pulsar://b:6650"));
        assert_eq!(parse("pulsar+ssl://b/").as_deref(), Ok("pulsar+ssl://b:6651"));
        assert_eq!(parse("pulsar://[::1]:7").as_deref(), Ok("pulsar://[::1]:7"));
        for odd in
            ["b:6650", "http://b:1", "pulsar://", "pulsar://b:x", "pulsar://u@b", "pulsar://b/t", "pulsar://a:1,b:2"]
        {
            assert!(parse(odd).is_err(), "{odd}");
        }
    }
}
