import com.google.protobuf.ByteString;
import java.io.IOException;
import org.apache.commons.configuration.Configuration;
import org.apache.hedwig.filter.MessageFilterBase;
import org.apache.hedwig.filter.ServerMessageFilter;
import org.apache.hedwig.protocol.PubSubProtocol.Message;
import org.apache.hedwig.protocol.PubSubProtocol.SubscriptionPreferences;

/** A filter that lets nothing through. */
public final class NothingFilter implements ServerMessageFilter {
    @Override
    public ServerMessageFilter initialize(Configuration configuration) throws IOException {
        return this;
    }

    @Override
    public void uninitialize() {
    }

    @Override
    public MessageFilterBase setSubscriptionPreferences(ByteString topic, ByteString subscriber, SubscriptionPreferences prefs) {
        return this;
    }

    @Override
    public boolean testMessage(Message message) {
        return false;
    }
}
